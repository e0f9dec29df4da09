"""
LCLRRDL in a Pipeline with GridSearchCV
=======================================

`LCLRRDL` follows the conventions of scikit-learn: samples are rows, `fit` and `predict`, `get_params` and
`clone`. Without `features` it takes any vectors, here the principal components of the photographs, and a
`GridSearchCV` tunes both steps together. The parameters of the two steps compete: more components carry more
detail, and more noise, which a larger ridge `eta` of the classifier evens out.
"""

import sys
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from faces import load_faces
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import Pipeline

from trainer import LCLRRDL

plt.switch_backend("Agg")  # draws into files
output = sys.argv[1] if len(sys.argv) > 1 else "grid_search.png"

# %%
# Four photographs of each of 40 people train, six test.
gallery = load_faces()
rows = gallery.images.reshape(len(gallery.images), -1) / 255
X, X_test, y, y_test = train_test_split(rows, gallery.labels, train_size=4 * 40, stratify=gallery.labels, random_state=0)

# %%
# `schedule="quick"` takes six iterations of Algorithm 1 instead of about twenty: enough for a search.
pipeline = Pipeline([("pca", PCA(random_state=0)), ("lclrrdl", LCLRRDL(atoms_per_class=2, coding="l21", schedule="quick"))])
grid: dict[str, list[Any]] = {"pca__n_components": [10, 20, 40, 80], "lclrrdl__eta": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
search = GridSearchCV(pipeline, grid, cv=StratifiedKFold(4, shuffle=True, random_state=0)).fit(X, y)
print(f"best parameters: {search.best_params_}")
tested = 100 * search.score(X_test, y_test)
print(f"held-out folds: {100 * search.best_score_:.1f} %, test photographs: {tested:.1f} %")

# %%
# GridSearchCV varies the last parameter in the order of the alphabet fastest: rows are values of eta.
accuracy = 100 * search.cv_results_["mean_test_score"].reshape(len(grid["lclrrdl__eta"]), -1)
figure, axis = plt.subplots(figsize=(6.4, 4.8), layout="constrained")
image = axis.imshow(accuracy, cmap="viridis", aspect="auto")
for (row, column), value in np.ndenumerate(accuracy):
    dark = value < (accuracy.min() + accuracy.max()) / 2
    axis.text(column, row, f"{value:.1f}", ha="center", va="center", color="white" if dark else "black")
row, column = np.unravel_index(search.best_index_, accuracy.shape)
axis.add_patch(plt.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="tab:red", linewidth=3))
axis.set_xticks(range(len(grid["pca__n_components"])), grid["pca__n_components"])
axis.set_yticks(range(len(grid["lclrrdl__eta"])), [f"{eta:g}" for eta in grid["lclrrdl__eta"]])
axis.set(xlabel="principal components", ylabel="eta, ridge of the classifier")
axis.set_title(f"{len(gallery.people)} people, 4 photographs each\nred: the best, {tested:.1f} % of the test photographs")
figure.colorbar(image, label="held-out photographs recognised (%)")
figure.savefig(output, dpi=110)
