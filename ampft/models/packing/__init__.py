"""Padding-free path for transformers encoders.

The idea is that of Effective Transformer and ByteTransformer, and on the training side of
MosaicBERT and ModernBERT: between the embeddings and the pooling of an encoder, attention alone has
to know where one sequence ends, so everything else can run on the real tokens of a batch.
"""
