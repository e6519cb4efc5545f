"""ERFNet, a small convolutional network for semantic segmentation, as a model of transformers.

Source: Romera, Álvarez, Bergasa and Arroyo, "ERFNet: Efficient Residual Factorized ConvNet for
Real-Time Semantic Segmentation", IEEE Transactions on Intelligent Transportation Systems 19, 2018,
table I. Importing this module registers it with `AutoConfig` and
`AutoModelForSemanticSegmentation`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForSemanticSegmentation,
    PreTrainedConfig,
    PreTrainedModel,
    SegformerImageProcessorPil,
)
from transformers.modeling_outputs import SemanticSegmenterOutput

MODEL_TYPE = "erfnet"
BATCH_NORM_EPSILON = 1e-3


class ErfnetConfig(PreTrainedConfig):
    """Configuration of an ERFNet. The defaults follow the paper."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        *,
        num_channels: int = 3,
        hidden_sizes: tuple[int, int, int] = (16, 64, 128),
        encoder_blocks: int = 5,
        dilations: tuple[int, ...] = (2, 4, 8, 16, 2, 4, 8, 16),
        decoder_blocks: int = 2,
        dropout_probs: tuple[float, float] = (0.03, 0.3),
        semantic_loss_ignore_index: int = 255,
        default_learning_rate: float = 5e-4,
        **arguments: Any,
    ) -> None:
        self.num_channels = num_channels  # Channels of the images.
        # Channels at a half, a quarter and an eighth of the resolution.
        self.hidden_sizes = list(hidden_sizes)
        # Non-bottleneck-1D blocks at a quarter of the resolution.
        self.encoder_blocks = encoder_blocks
        self.dilations = list(dilations)  # Dilation of each block at an eighth of the resolution.
        # Non-bottleneck-1D blocks after each of the decoder's two upsamplers.
        self.decoder_blocks = decoder_blocks
        # Probability of dropping a channel in the encoder's blocks at a quarter and at an eighth of
        # the resolution.
        self.dropout_probs = list(dropout_probs)
        # Label of pixels that do not count in the loss of `forward`.
        self.semantic_loss_ignore_index = semantic_loss_ignore_index
        # Peak learning rate for training it from random weights (the authors' 5e-4).
        self.default_learning_rate = default_learning_rate
        super().__init__(**arguments)


class Downsampler(nn.Module):
    """A stride-2 convolution and a max pooling in parallel, concatenated and normalised."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs - inputs, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2, stride=2)
        self.norm = nn.BatchNorm2d(outputs, eps=BATCH_NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Return (m, outputs, H / 2, W / 2) of (m, inputs, H, W)."""
        return functional.relu(self.norm(torch.cat([self.conv(x), self.pool(x)], dim=1)))


class NonBottleneck1D(nn.Module):
    """A residual block of two 3 x 3 convolutions, each factorised into 3 x 1 and 1 x 3."""

    def __init__(self, channels: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.conv3x1_1 = nn.Conv2d(channels, channels, (3, 1), padding=(1, 0))
        self.conv1x3_1 = nn.Conv2d(channels, channels, (1, 3), padding=(0, 1))
        self.norm1 = nn.BatchNorm2d(channels, eps=BATCH_NORM_EPSILON)
        self.conv3x1_2 = nn.Conv2d(
            channels, channels, (3, 1), padding=(dilation, 0), dilation=(dilation, 1)
        )
        self.conv1x3_2 = nn.Conv2d(
            channels, channels, (1, 3), padding=(0, dilation), dilation=(1, dilation)
        )
        self.norm2 = nn.BatchNorm2d(channels, eps=BATCH_NORM_EPSILON)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return (m, channels, H, W) of the same shape."""
        y = functional.relu(self.conv3x1_1(x))
        y = functional.relu(self.norm1(self.conv1x3_1(y)))
        y = functional.relu(self.conv3x1_2(y))
        y = self.dropout(self.norm2(self.conv1x3_2(y)))
        return functional.relu(x + y)


class Upsampler(nn.Module):
    """A transposed convolution of stride 2, normalised."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1)
        self.norm = nn.BatchNorm2d(outputs, eps=BATCH_NORM_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Return (m, outputs, 2 H, 2 W) of (m, inputs, H, W)."""
        return functional.relu(self.norm(self.conv(x)))


class ErfnetForSemanticSegmentation(PreTrainedModel):
    """ERFNet: an encoder of 16 layers of the paper's table, a decoder of 7, and their logits."""

    config_class = ErfnetConfig
    base_model_prefix = "encoder"
    main_input_name = "pixel_values"

    def __init__(self, config: ErfnetConfig) -> None:
        super().__init__(config)
        half, quarter, eighth = config.hidden_sizes
        at_quarter, at_eighth = config.dropout_probs
        self.encoder = nn.Sequential(
            Downsampler(config.num_channels, half),
            Downsampler(half, quarter),
            *(NonBottleneck1D(quarter, 1, at_quarter) for _ in range(config.encoder_blocks)),
            Downsampler(quarter, eighth),
            *(NonBottleneck1D(eighth, dilation, at_eighth) for dilation in config.dilations),
        )
        self.decoder = nn.Sequential(
            Upsampler(eighth, quarter),
            *(NonBottleneck1D(quarter, 1, 0.0) for _ in range(config.decoder_blocks)),
            Upsampler(quarter, half),
            *(NonBottleneck1D(half, 1, 0.0) for _ in range(config.decoder_blocks)),
        )
        self.classifier = nn.ConvTranspose2d(half, config.num_labels, 2, stride=2)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a layer as PyTorch does, which is what the authors use."""
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm2d):
            module.reset_parameters()

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any
    ) -> SemanticSegmenterOutput:
        """Return logits, and with labels the mean loss of the pixels that are not ignored.

        Args:
            pixel_values: (m, 3, H, W) images. H and W of any size are padded with zeros to
                multiples of 8, and the logits are cut back.
            labels: (m, H, W) int64 classes; `config.semantic_loss_ignore_index` does not count.

        Returns:
            An output with `logits` (m, K, H, W).
        """
        height, width = pixel_values.shape[-2:]
        padded = functional.pad(pixel_values, (0, -width % 8, 0, -height % 8))
        logits = self.classifier(self.decoder(self.encoder(padded)))[..., :height, :width]
        loss = None
        if labels is not None:
            ignored = self.config.semantic_loss_ignore_index
            loss = functional.cross_entropy(logits.float(), labels, ignore_index=ignored)
        return SemanticSegmenterOutput(loss=loss, logits=logits)


AutoConfig.register(MODEL_TYPE, ErfnetConfig)
AutoModelForSemanticSegmentation.register(ErfnetConfig, ErfnetForSemanticSegmentation)
AutoImageProcessor.register(ErfnetConfig, slow_image_processor_class=SegformerImageProcessorPil)
