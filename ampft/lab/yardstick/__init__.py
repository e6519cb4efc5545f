"""The noise yardstick: the gradient error of a mode relative to the noise of the batches.

It needs no training. At the initial weights, and at the weights of given runs, the gradient of each
of n step batches b of the training split is computed in float64 (g_b) and as training in mode m
would compute it (g_b^m: float32, loss scale divided out, before clipping). Dropout is off, so that
both are gradients of the same function. Norms are L2, over all entries or the entries of a module.

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
in |g|^2. The reported figures are `error / noise` and `bias / noise`.

Independent errors add to the noise as variances: error/noise = r has the same effect as reducing
the step batch by the factor 1 + r^2. The part of the error that all batches share is worse, because
it does not average out over steps. It is the bias, |E e|, estimated by the U-statistic over pairs
of batches. The naive estimate |1/n sum e_b|^2 is too large by error^2/n even without a bias.
Negative estimates count as 0. If E e = 0, the h_b are martingale differences, and z is
approximately standard normal for large n (Hall, 1984, "Central limit theorem for integrated square
error of multivariate nonparametric density estimators"). A bias is significant if z exceeds
`MIN_BIAS_Z`. If the bias dominates all else, z is about sqrt(3n)/2, so fewer than 6 batches cannot
show a significant bias. The bias equals the noise that remains in the mean over (noise / bias)^2
steps.

A mode with loss scaling starts every batch at the initial loss scale of training and halves it
while the gradient overflows, as the scaler does. If a batch has no finite gradient at any scale,
its error is undefined, and the mode gets no figures.

The reference runs the padded model with float64 weights, buffers and inputs, without autocast. If a
model explicitly computes something in float32 (such as some rotary embeddings), so does the
reference.
"""
