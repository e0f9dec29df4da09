"""
Choose lam by cross-validation
==============================

`lam` is the weight of the error E in problem 5. With a small `lam` an error is cheap: E takes the face
itself, the codes Z lose rank, and people can no longer be distinguished. Above some `lam` E keeps only what D
cannot represent at all, and nothing changes any more. scikit-learn's `validation_curve` shows both; the
one-standard-error rule takes the lower end of the plateau.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from faces import load_faces
from sklearn.model_selection import RepeatedStratifiedKFold, validation_curve

from trainer import LCLRRDL, FeatureSpec

plt.switch_backend("Agg")  # draws into files
output = sys.argv[1] if len(sys.argv) > 1 else "choose_lam.png"

# %%
# Photographs with noise, averaged over cells of 4 x 4 pixels. scikit-learn wants rows, so each image is
# flattened; the estimator knows its size from `features`.
gallery = load_faces()
rng = np.random.default_rng(0)
images = np.clip(gallery.images + rng.normal(0, 60, gallery.images.shape), 0, 255).astype(np.uint8)
rows = images.reshape(len(images), -1)
spec = FeatureSpec(height=112, width=92, kind="pixels", cell=4)
estimator = LCLRRDL(atoms_per_class=2, coding="l21", doubt=False, features=spec)

# %%
# Two folds, twice: 800 held-out photographs for every value of `lam`.
lams = [0.3, 0.5, 1, 2, 5, 10, 25, 50]
folds = RepeatedStratifiedKFold(n_splits=2, n_repeats=2, random_state=0)
_, scores = validation_curve(estimator, rows, gallery.labels, param_name="lam", param_range=lams, cv=folds)
accuracy, deviation = 100 * scores.mean(axis=1), 100 * scores.std(axis=1)

# %%
# The smallest `lam` whose accuracy is within one standard error of the best.
best = accuracy.max() / 100
limit = accuracy.max() - 100 * np.sqrt(best * (1 - best) / len(images))
chosen = next(lam for lam, value in zip(lams, accuracy, strict=True) if value >= limit)
for lam, value in zip(lams, accuracy, strict=True):
    print(f"lam {lam:>4}: {value:.1f} %" + (" (chosen)" if lam == chosen else ""))

# %%
# What `lam` does to the training: the rank of the codes, and the share of the samples that E takes.
results = [estimator.set_params(lam=lam).fit(rows, gallery.labels).result_ for lam in lams]
ranks = [result.rank for result in results]
shares = [100 * np.linalg.norm(result.E, axis=0).mean() for result in results]

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
left.errorbar(lams, accuracy, yerr=deviation, marker="o", capsize=3)
left.axhline(limit, color="tab:gray", linestyle=":", label="one standard error below the best")
left.axvline(chosen, color="tab:red", linestyle="--", label=f"chosen: lam = {chosen:g}")
left.set(xscale="log", xlabel="lam", ylabel="held-out photographs recognised (%)", title="Accuracy")
left.legend(loc="lower right")
right.plot(lams, shares, marker="o", color="tab:orange")
right.set(xscale="log", xlabel="lam", ylim=(0, None), title="What the training does")
right.set_ylabel("mean length of a column of E (% of a sample)", color="tab:orange")
other = right.twinx()
other.plot(lams, ranks, marker="s", color="tab:green")
other.set(ylim=(0, None))
other.set_ylabel("rank of the codes Z", color="tab:green")
for axis in (left, right):
    axis.set_xticks(lams, [f"{lam:g}" for lam in lams], minor=False)
    axis.set_xticks([], minor=True)
figure.suptitle(f"{len(gallery.people)} people, {len(images)} photographs with noise")
figure.savefig(output, dpi=110)
