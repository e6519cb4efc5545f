"""Runs models of transformers without padding.

The idea comes from Effective Transformer and ByteTransformer, and for training from MosaicBERT and
ModernBERT: between the embeddings and the pooling of a model, only attention depends on where
sequences end, so everything else can run on the real tokens of a batch.
"""
