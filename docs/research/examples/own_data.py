"""
Your own data set in the tables
===============================

`trainer tables` measures any faces that are cropped to one size: an .npz file with `images` (N, height,
width) and `labels` (N,), numbers or names, in the folder of `--data`. A cell FILE:N takes N random
photographs of each person for training and all others for testing; split k is the same for every method.
`--tune` chooses parameters on training photographs only.
"""

import csv
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from faces import load_faces

plt.switch_backend("Agg")  # draws into files
output = sys.argv[1] if len(sys.argv) > 1 else "own_data.png"

# %%
# The data set: photographs of 40 people, every second of them with a square of noise at a random place.
gallery = load_faces()
rng = np.random.default_rng(0)
images = gallery.images.copy()
for image in images[::2]:
    top, left = rng.integers(112 - 36), rng.integers(92 - 36)
    image[top : top + 36, left : left + 36] = rng.integers(0, 256, (36, 36))

# %%
# The command, with three cells of the file: 3, 5 and 7 photographs of each person train. Without
# --parameters, every method has its usual parameters; `trainer tables --tune` with the same --data, --cells
# and --methods finds better ones.
methods, cells = ["lclrrdl", "lrr", "srw", "llc"], ["covered.npz:3", "covered.npz:5", "covered.npz:7"]
with TemporaryDirectory() as folder:
    np.savez(Path(folder) / "covered.npz", images=images, labels=gallery.labels)
    command = ["trainer", "tables", "--data", folder, "--cells", ",".join(cells), "--splits", "3", "--jobs", "1"]
    command += ["--methods", ",".join(methods), "-o", f"{folder}/results"]
    subprocess.run([sys.executable, "-m", *command], check=True)
    with open(f"{folder}/results/tables.csv") as file:
        rows = list(csv.DictReader(file))

# %%
figure, (left_axis, right_axis) = plt.subplots(1, 2, figsize=(9.5, 4.2), width_ratios=(2, 3), layout="constrained")
left_axis.imshow(np.vstack([np.hstack(list(images[i : i + 3])) for i in (0, 100, 200)]), cmap="gray")
left_axis.set(xticks=[], yticks=[], title="covered.npz: every second photograph\nhas a square of noise")
for shift, method in enumerate(methods):
    own = [row for row in rows if row["method"] == method]
    photographs = [int(row["column"].rpartition(":")[2]) + 0.08 * (shift - 1.5) for row in own]  # beside each other
    means, deviations = ([float(row[key]) for row in own] for key in ("ours", "deviation"))
    right_axis.errorbar(photographs, means, yerr=deviations, marker="o", capsize=3, label=method)
right_axis.set(xticks=[3, 5, 7], xlabel="training photographs of each person", ylabel="test photographs recognised (%)")
right_axis.set_title("Mean and deviation of 3 random splits")
right_axis.legend(loc="lower right")
figure.savefig(output, dpi=110)
