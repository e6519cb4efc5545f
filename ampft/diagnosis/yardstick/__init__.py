"""The noise yardstick: how large a mode's gradient error is beside the noise of the batches.

No training is needed. At the initial weights, and at those of given runs, the gradient of each of n
step batches b of the training split is computed in float64 (g_b) and as training in mode m would
compute it (g_b^m: float32, loss scale divided out, before clipping). Dropout is off, so that both
are gradients of one function. Norms are L2, over all entries or those of a module.

    mean        g = 1/n sum_b g_b
    noise^2     = 1/(n-1) sum_b |g_b - g|^2
    signal^2    = |g|^2 - noise^2 / n
    error^2     = 1/n sum_b |e_b|^2                         with e_b = g_b^m - g_b
    bias^2      = 2/(n(n-1)) sum_b h_b                      with h_b = e_b . sum_{c<b} e_c
    z           = sum_b h_b / sqrt(sum_b h_b^2)
    underflow   = #{g_b^m = 0 and g_b != 0} / #{g_b != 0}   entries, over all b

`noise^2` estimates the trace of the covariance of a step batch's gradient, tr(Sigma)/B in
McCandlish et al., "An Empirical Model of Large-Batch Training" (2018, arXiv:1812.06162, section 2.2
and appendix A.1), and `signal^2` the squared norm of the true gradient, without the noise that is
in |g|^2. Reported are `error / noise` and `bias / noise`.

Independent errors add to the noise, as variances: error/noise = r is what a step batch smaller by
the factor 1 + r^2 would cost. The part that is the same in every batch is worse: it does not
average out over steps. It is the bias, |E e|, estimated by the U-statistic over pairs of batches:
the naive |1/n sum e_b|^2 has error^2/n added even where there is no bias. Negative estimates count
as 0. Where E e = 0 the h_b are martingale differences, and z is about standard normal for large n
(Hall, 1984, "Central limit theorem for integrated square error of multivariate nonparametric
density estimators"); above `FOUND_Z` the bias is called found. With n batches and a bias that
exceeds all else z comes to about sqrt(3n)/2: below 6 batches none can be found. The bias equals the
noise that is left in the mean over (noise / bias)^2 steps.

A mode that scales its loss begins every batch at the scale that training begins with, and halves it
while the gradient overflows, as the scaler does. A batch without a finite gradient at any scale has
no error to speak of: then the mode gets no figures.

The reference runs the padded model with float64 weights, buffers and inputs, without autocast. What
a model computes in float32 by its own code (some rotary embeddings) is so in the reference too.
"""
