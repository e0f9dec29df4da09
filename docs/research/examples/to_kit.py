"""
From a fitted estimator to a kit
================================

A kit is the one file that a device runs: an ONNX graph with a fixed number of iterations. `to_model` turns a
fitted estimator into a model, `build_kit` the model into a kit, which it compares with the trainer face by
face, and `edge.Recognizer` runs the kit with NumPy, OpenCV and onnxruntime only. People who are not enrolled
should get no label, so the threshold is measured on people who are left out of training. (`trainer.fit` does
these steps in one call.)
"""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from faces import load_faces

from edge import Recognizer
from export import build_kit
from trainer import LCLRRDL, FeatureSpec
from trainer.thresholds import stranger_confidences, stricter_threshold
from trainer.training import to_model

plt.switch_backend("Agg")  # draws into files
output = sys.argv[1] if len(sys.argv) > 1 else "to_kit.png"

# %%
# Thirty people are enrolled with six photographs each. Their other photographs, and ten strangers, come to
# the door later.
gallery = load_faces()
enrolled = np.isin(gallery.labels, gallery.people[:30])
trained = enrolled & (np.arange(len(gallery.labels)) % 10 < 6)
training, visitors, strangers = (gallery.selected(mask) for mask in (trained, enrolled & ~trained, ~enrolled))

# %%
# The estimator, with the parameters of the preset `tiny`. At most 1 % of the photographs of left-out people
# may pass the threshold.
spec = FeatureSpec.for_crop(112, 92, kind="both")
parameters: dict[str, Any] = {"coding": "l21", "eta": 1e-3, "parts": (4, 2)}
estimator = LCLRRDL(features=spec, **parameters).fit(training.images, training.labels)
threshold = stricter_threshold(stranger_confidences(training, spec, parameters), np.zeros(0), 0.01)

# %%
# The kit. If its graph and the trainer did not agree on every face, `build_kit` would raise an error.
model = replace(to_model(estimator, training, spec, {}), calibration=threshold)
built = build_kit(model, data=visitors)
with TemporaryDirectory() as folder:
    file = Path(folder) / "door.kit"
    file.write_bytes(built.kit)
    recognizer = Recognizer.load(file)
print(f"kit: {len(built.kit) / 1000:.0f} KB, {built.choice.coding.iterations} iterations")

# %%
# On the device: one Recognition per crop. For frames of a camera, train on photographs as a camera takes
# them, not on crops.
of_visitors, of_strangers = (recognizer.recognize_crops(some.images) for some in (visitors, strangers))
same = np.mean([found.nearest == label for found, label in zip(of_visitors, estimator.predict(visitors.images), strict=True)])
right = np.mean([found.label == label for found, label in zip(of_visitors, visitors.labels, strict=True)])
named = np.mean([found.label is not None for found in of_strangers])
print(f"same person as the estimator: {100 * same:.1f} %")
print(f"visitors with their own label: {100 * right:.1f} %, strangers with a label: {100 * named:.1f} %")

# %%
figure, axes = plt.subplot_mosaic("012hhhh;345hhhh", figsize=(11, 4.4), layout="constrained")
chosen = [(visitors, of_visitors, i) for i in (0, 41, 77)] + [(strangers, of_strangers, i) for i in (0, 35, 71)]
for place, (some, results, i) in zip("012345", chosen, strict=True):
    axes[place].imshow(some.images[i], cmap="gray")
    axes[place].set(
        xticks=[], yticks=[], title=results[i].label or "no label", xlabel=f"confidence {results[i].confidence:.2f}"
    )
axes["0"].set_ylabel("visitors")
axes["3"].set_ylabel("strangers")
groups = [[found.confidence for found in results] for results in (of_visitors, of_strangers)]
titles = [f"{len(visitors.labels)} photographs of visitors", f"{len(strangers.labels)} photographs of strangers"]
axes["h"].hist(groups, bins=np.linspace(0.2, 1, 21).tolist(), label=titles)
axes["h"].axvline(of_visitors[0].threshold, color="tab:red", linestyle="--", label=f"threshold {of_visitors[0].threshold:.2f}")
axes["h"].set(xlabel="confidence", ylabel="photographs", yticks=range(0, 31, 5))
axes["h"].set_title(f"{100 * right:.0f} % of visitors get their label, {100 * named:.0f} % of strangers get one")
axes["h"].legend(loc="upper left")
figure.savefig(output, dpi=110)
