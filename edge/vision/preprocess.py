"""From a face in a frame to a feature vector: the one definition that training, the exported graph and the device share.

    grey frame and five landmarks  ->  aligned crop, uint8 (H, W)  ->  pixels | gradient | both  ->  vector of unit length

A network gets crops in colour, uint8 (H, W, 3), BGR like frames. Our own features beside it are those of the crop in grey.
`pixels` is the crop averaged over square cells. `gradient` is the direction of the grey-level slope, which changes little with
the light: blur and Sobel, the slope divided by its length, its positive part along eight directions, squared, averaged over
cells. `both` stacks the two with equal weight. Each step is an ONNX operator (Pad, Conv, Relu, AveragePool...), so that
export/feature_graph.py can put the same arithmetic into the graph.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import ParameterError
from edge.kit.manifest import ALIGNMENT, ARCFACE_ALIGNMENT, EYES_ALIGNMENT
from edge.vision.confidence import BLANK

Kind = Literal["pixels", "gradient", "both"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DIRECTIONS = 8
CHUNK = 256  # crops per batch; limits memory, does not change the result
SIZE = (80, 64)  # default height and width of a crop
# Templates: where a crop shows the eyes, the nose and the corners of the mouth. x is measured from the middle of the crop, y
# from its top, both in crop heights. Ours is the mean ORL face. The other is from ArcFace; most embedding models use it.
# A kit needs the crops that it was trained on, so a changed template needs a new alignment name.
LANDMARKS = np.array([[-0.168, 0.37], [0.168, 0.37], [0, 0.558], [-0.141, 0.695], [0.141, 0.695]])
_ARCFACE = np.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]])
# Weights of blue, green and red in grey: those of cv2.cvtColor, which rounds the result.
GREY_WEIGHTS = np.array([0.114, 0.587, 0.299], np.float32)
_ARCFACE_TEMPLATE = (_ARCFACE - (56, 0)) / 112
LANDMARK_TEMPLATES = {ALIGNMENT: LANDMARKS, ARCFACE_ALIGNMENT: _ARCFACE_TEMPLATE, EYES_ALIGNMENT: _ARCFACE_TEMPLATE}
# Distance from the eyes to the mouth over the distance between the eyes: below the first the lower landmarks count almost
# nothing in EYES_ALIGNMENT, above the second as much as the eyes. Of unmasked faces in LFW and COMASK20, 1 to 7 % are below
# 0.95; of masked ones, 19 %.
MASKED_RATIO, BARE_RATIO, MASKED_WEIGHT = 0.9, 1.0, 0.01


@dataclass(frozen=True, kw_only=True)
class FeatureSpec:
    """Which features to compute from a crop. Models and kits store it."""

    height: int
    """Rows of the crop."""
    width: int
    """Columns of the crop."""
    kind: str = "both"
    """pixels, gradient or both."""
    cell: int = 1
    """Side of the square cells over which pixels are averaged."""
    gradient_cell: int = 2
    """Side of the square cells over which directions are averaged."""
    blur: float = 0.5
    """Standard deviation, in pixels, of the blur before the slope is taken."""
    flat: float = 0.5
    """Slope, in grey levels per two pixels, below which a direction counts as noise and fades out."""

    alignment = ALIGNMENT
    colour = False
    network = None  # trainer.features.network.Network has the same members

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(f"features must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if min(self.cell, self.gradient_cell) < 1 or not (0 <= self.blur < np.inf and 0 < self.flat < np.inf):
            raise ParameterError("cells must be at least 1 pixel wide, blur 0 or more, flat more than 0")
        if max(self.cell, self.gradient_cell) > min(self.height, self.width):
            raise ParameterError(f"a {self.height}x{self.width} crop is smaller than one cell")

    @classmethod
    def for_crop(cls, height: int, width: int, kind: str = "both") -> "FeatureSpec":
        """Return a spec with about 20 pixel cells and 16 direction cells across the shorter side, which is fine enough."""
        short = min(height, width)
        cell, gradient_cell = (max(1, round(short / cells)) for cells in (20, 16))
        return cls(height=height, width=width, kind=kind, cell=cell, gradient_cell=gradient_cell)

    def settings(self) -> dict[str, Any]:
        """All fields, for model files and manifests."""
        return asdict(self)

    @property
    def crop_shape(self) -> tuple[int, ...]:
        """(height, width) of a crop."""
        return self.height, self.width

    @property
    def own(self) -> "FeatureSpec":
        """The part of the vector that belongs to cells of the crop: all of it."""
        return self

    def vectors(self, crops: NDArray[Any]) -> NDArray[np.float32]:
        """Return the features of crops (N, H, W) as unit rows."""
        return features(crops, self)

    @property
    def length(self) -> int:
        """Length of a feature vector."""
        pixels = (self.height // self.cell) * (self.width // self.cell)
        cells = (self.height // self.gradient_cell) * (self.width // self.gradient_cell)
        return {"pixels": pixels, "gradient": DIRECTIONS * cells, "both": pixels + DIRECTIONS * cells}[self.kind]

    @property
    def slope_kernels(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The combined 1-D kernels of blur and Sobel: along the slope, and across it."""
        radius = int(np.ceil(2.5 * self.blur))
        x = np.arange(-radius, radius + 1)
        gauss = np.exp(-0.5 * (x / self.blur) ** 2) if self.blur > 0 else np.ones(1)
        gauss /= gauss.sum()
        along = np.convolve(gauss, [-1.0, 0.0, 1.0])
        across = np.convolve(gauss, [0.25, 0.5, 0.25])
        return along.astype(np.float32), across.astype(np.float32)


def direction_vectors() -> NDArray[np.float32]:
    """Return the unit vectors (x, y) along which slopes are measured, (8, 2)."""
    angle = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def check_crops(crops: NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a crop has this shape: (height, width), or (height, width, 3) in colour."""
    if crops.shape[1:] != shape:
        raise ValueError(f"crops must be {' x '.join(map(str, ('N', *shape)))}, not {crops.shape}")


def to_grey(crops: NDArray[Any]) -> NDArray[np.float32]:
    """Return crops (N, H, W), or BGR (N, H, W, 3), in grey (N, H, W), not rounded."""
    levels = crops.astype(np.float32)
    return levels if levels.ndim == 3 else (levels * GREY_WEIGHTS).sum(axis=3)


def features(crops: NDArray[Any], spec: FeatureSpec) -> NDArray[np.float32]:
    """Return unit rows (N, spec.length) of grey crops (N, H, W). The row of a blank crop is zero."""
    check_crops(crops, spec.crop_shape)
    rows = np.empty((len(crops), spec.length), np.float32)
    for start in range(0, len(crops), CHUNK):
        some = crops[start : start + CHUNK].astype(np.float32)
        parts = []
        if spec.kind != "gradient":
            parts.append(unit_rows(_average(some[:, None], spec.cell)))
        if spec.kind != "pixels":
            parts.append(unit_rows(_average(_directions(some, spec), spec.gradient_cell)))
        rows[start : start + CHUNK] = unit_rows(np.hstack(parts))
    return rows


def resize_crop(image: NDArray[Any], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize an image, grey or BGR, to (height, width)."""
    height, width = image.shape[:2]
    return _sample(image, np.array([[width / size[1], 0, 0], [0, height / size[0], 0]]), size)


def align(
    image: NDArray[np.uint8], landmarks: NDArray[Any], size: tuple[int, int], alignment: str = ALIGNMENT
) -> NDArray[np.uint8]:
    """Return the aligned crop of the face with these landmarks (5, 2) in a frame: (height, width) of grey, with 3 of BGR."""
    return _sample(image, crop_to_frame(landmarks, size, alignment), size)


def crop_to_frame(landmarks: NDArray[Any], size: tuple[int, int], alignment: str = ALIGNMENT) -> NDArray[np.float64]:
    """Return the similarity transform (2, 3) from crop to frame that moves the template closest to `landmarks`.

    With points as complex numbers it is z = a w + b: least squares takes one line each, and a mirror image is impossible.
    """
    frame = np.asarray(landmarks, np.float64) @ (1, 1j)
    crop = (LANDMARK_TEMPLATES[alignment] * size[0]) @ (1, 1j) + size[1] / 2
    weights = _landmark_weights(frame) if alignment == EYES_ALIGNMENT else np.full(5, 0.2)
    spread = crop - weights @ crop
    a = np.vdot(weights * spread, frame) / np.vdot(weights * spread, spread)
    b = weights @ (frame - a * crop)
    return np.array([[a.real, -a.imag, b.real], [a.imag, a.real, b.imag]])


def _landmark_weights(points: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights (5,) with sum 1 for landmarks (5,) as complex numbers: equal, or nearly 0 for nose and mouth.

    On a masked face the detector places nose and mouth too close to the eyes, and the crop would be too small. A turned head
    shortens the distance between the eyes instead.
    """
    left, right, _, *mouth = points
    ratio = abs(np.mean(mouth) - (left + right) / 2) / max(abs(right - left), BLANK)
    bare = np.clip((ratio - MASKED_RATIO) / (BARE_RATIO - MASKED_RATIO), 0, 1)
    lower = MASKED_WEIGHT ** (1 - bare)  # a power, so that the crop changes evenly with the ratio
    weights = np.array([1, 1, lower, lower, lower])
    return weights / weights.sum()


def _sample(image: NDArray[Any], to_source: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return an image of (height, width) whose point p shows `image` at to_source (p, 1). Pixel i covers i to i + 1.

    warpAffine gives the same bytes on every CPU, cv2.resize does not. Each channel of BGR becomes what it would be alone. The
    image is blurred before it is made smaller, so that no detail falls between the samples.
    """
    height, width = size
    sigma = 0.4 * np.sqrt(np.maximum((to_source[:, :2] ** 2).sum(axis=0) - 1, 0))  # across, down
    corners = to_source @ np.array([[0, width, 0, width], [0, 0, height, height], [1, 1, 1, 1]])
    margin = np.ceil(3 * sigma.max()) + 2
    last = np.array(image.shape[1::-1]) - 1  # column, row
    left, top = np.clip(corners.min(axis=1) - margin, 0, last).astype(int)
    right, bottom = np.clip(corners.max(axis=1) + margin, 0, last).astype(int)
    image = image[top : bottom + 1, left : right + 1]  # blurring the whole frame for one face would be slow
    if sigma.max() > 0:
        sigma_x, sigma_y = np.maximum(sigma, 1e-3)
        image = cv2.GaussianBlur(image, (0, 0), sigmaX=sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REPLICATE)
    centres = to_source.copy()
    centres[:, 2] += to_source[:, :2] @ (0.5, 0.5) - 0.5 - (left, top)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, centres, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)  # type: ignore[return-value]


def _directions(images: NDArray[np.float32], spec: FeatureSpec) -> NDArray[np.float32]:
    """Return the squared positive part of the unit slope along each direction, (N, 8, H, W)."""
    along, across = spec.slope_kernels
    slopes: NDArray[np.float32] = np.array([
        [cv2.sepFilter2D(image, cv2.CV_32F, x, y, borderType=cv2.BORDER_REPLICATE) for image in images]
        for x, y in ((along, across), (across, along))
    ])  # fmt: skip
    slopes /= np.sqrt((slopes**2).sum(axis=0) + np.float32(spec.flat) ** 2)
    return np.stack([np.maximum(x * slopes[0] + y * slopes[1], 0) ** 2 for x, y in direction_vectors()], axis=1)


def _average(channels: NDArray[np.float32], cell: int) -> NDArray[np.float32]:
    """Return the means over square cells of (N, K, H, W), flattened. Rows and columns of incomplete cells are left out."""
    n, k, height, width = channels.shape
    h, w = height // cell, width // cell
    cells = channels[:, :, : h * cell, : w * cell].reshape(n, k, h, cell, w, cell)
    return cells.mean(axis=(3, 5)).reshape(n, -1)


def unit_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Scale each row to unit length. A blank row becomes zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(length > BLANK, rows / np.maximum(length, BLANK), 0).astype(rows.dtype)
