"""
Denoise a face into DZ and E
============================

Problem 5 splits the samples X into two parts, X = DZ + E. DZ is what a small dictionary D can represent with
low-rank codes Z; E takes what is left of each sample. With noise on every photograph, DZ is nearer to the
clean face than the photograph is, because photographs of faces have much in common, and noise has not. E
takes most of the noise, and the finest edges of the face.

`LCLRRDL` is a scikit-learn classifier. Its training is Algorithm 1 of the paper; `result_` has Z, D and E.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from faces import load_faces

from trainer import LCLRRDL, FeatureSpec

plt.switch_backend("Agg")  # draws into files
output = sys.argv[1] if len(sys.argv) > 1 else "denoising.png"

# %%
# Twenty people, ten photographs each, and noise with a standard deviation of 40 grey levels on every pixel.
gallery = load_faces(people=20)
rng = np.random.default_rng(0)
noisy = np.clip(gallery.images + rng.normal(0, 40, gallery.images.shape), 0, 255).astype(np.uint8)

# %%
# Every pixel is a feature. These `lam` and `alpha` are low: E may take much, and a sample may use atoms of
# other people. For recognition a higher `lam` is better (choose_lam.py).
spec = FeatureSpec(height=112, width=92, kind="pixels")
estimator = LCLRRDL(lam=1.2, alpha=0.1, atoms_per_class=5, coding="l21", features=spec).fit(noisy, gallery.labels)
Z, D, E = estimator.result_.Z, estimator.result_.D, estimator.result_.E

# %%
# Samples are columns of unit length, as in the paper.
X, clean = spec.vectors(noisy).T, spec.vectors(gallery.images).T
DZ = D @ Z
print(f"largest entry of X - DZ - E: {np.abs(X - DZ - E).max():.1e}")


def distance(A: np.ndarray) -> float:
    """The mean distance from the clean faces, all at unit length."""
    return float(np.linalg.norm(A / np.linalg.norm(A, axis=0) - clean, axis=0).mean())


# %%
# The mean of a person's photographs has little noise, too, but is the same for all of them.
means = np.stack([X[:, gallery.labels == label].mean(axis=1) for label in gallery.labels], axis=1)
before, after, of_means = map(distance, (X, DZ, means))
print(f"distance from the clean faces: X {before:.3f}, DZ {after:.3f}, mean of the person {of_means:.3f}")

# %%
# One row for each of four people.
chosen = [3, 42, 93, 157]
columns = {"clean face": clean, "X: with noise": X, "DZ: low-rank part": DZ, "E: error": E}
figure, rows = plt.subplots(len(chosen), len(columns), figsize=(7.2, 8.6), layout="constrained")
for axes, sample in zip(rows, chosen, strict=True):
    for axis, (title, matrix) in zip(axes, columns.items(), strict=True):
        axis.imshow(matrix[:, sample].reshape(112, 92), cmap="gray")
        axis.set(xticks=[], yticks=[])
        if sample == chosen[0]:
            axis.set_title(title, fontsize=11)
    axes[0].set_ylabel(f"person {gallery.labels[sample]}")
figure.suptitle(
    f"X = DZ + E: distance from the clean faces {before:.2f} before, {after:.2f} after\n"
    f"({D.shape[1]} atoms, {X.shape[1]} photographs of {len(gallery.people)} people)",
    fontsize=12,
)
figure.savefig(output, dpi=110)
