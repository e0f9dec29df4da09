"""Other face recognisers, with one thread. This file runs in a separate environment (scripts/research/peers.py).

python peer_recognizers.py FOLDER         time of one face; FOLDER contains the weights
python peer_recognizers.py FOLDER TASKS   identification: see `answers`

Prints one JSON object per line, {"name": ..., ...}, when it is known; an unavailable recogniser is {"skipped": reason}.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before NumPy is loaded
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}

import numpy as np

RUNS = 60
Array = np.ndarray[Any, Any]


def timed(call: Callable[[], Any]) -> dict[str, float]:
    for _ in range(5):
        call()
    taken, worked = [], []
    for _ in range(RUNS):
        start, before = time.perf_counter(), time.process_time()
        call()
        worked.append(time.process_time() - before)
        taken.append(time.perf_counter() - start)
    p50, p95 = np.percentile(taken, [50, 95]) * 1e6
    return {"p50_us": float(p50), "p95_us": float(p95), "cpu_us": 1e6 * float(np.median(worked))}


# --- Time of a network ---


def with_opencv(path: Path) -> dict[str, float]:
    import cv2

    cv2.setNumThreads(1)
    recognizer = cv2.FaceRecognizerSF.create(str(needed(path)), "")
    face = np.random.default_rng(0).integers(0, 256, (112, 112, 3), np.uint8)
    return timed(lambda: recognizer.feature(face))


def with_onnxruntime(path: Path) -> dict[str, float]:
    """Remove the weights from the list of inputs, so that the runtime can fold them: this is faster."""
    import onnx
    import onnxruntime as ort

    model = onnx.load(needed(path))
    data = next(given for given in model.graph.input if given.name == "data")
    del model.graph.input[:]
    model.graph.input.append(data)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    face = np.random.default_rng(0).uniform(0, 255, (1, 3, 112, 112)).astype(np.float32)
    return timed(lambda: session.run(None, {"data": face}))


def with_dlib(path: Path) -> dict[str, float]:
    import dlib  # type: ignore[import-not-found]

    model = dlib.face_recognition_model_v1(str(needed(path)))
    face = np.random.default_rng(0).integers(0, 256, (150, 150, 3), np.uint8)
    return timed(lambda: model.compute_face_descriptor(face))


NETWORKS = {
    "SFace fp32, OpenCV": (with_opencv, "sface_fp32.onnx"),
    "SFace fp32, onnxruntime": (with_onnxruntime, "sface_fp32.onnx"),
    "SFace int8, onnxruntime": (with_onnxruntime, "sface_int8.onnx"),
    "dlib ResNet": (with_dlib, "dlib.dat"),
}


def times(folder: Path) -> None:
    for name, (measure, file) in NETWORKS.items():
        with skip_on_error(name):
            write_line(name, **measure(folder / file))


# --- Identification ---


@dataclass(frozen=True)
class Trained:
    """A trained recogniser."""

    answer: Callable[[Array], tuple[Array, Array]]
    """The label of each face (n, H, W), and its score: higher is more certain."""
    bytes: int
    """The size of what must be shipped."""


def opencv_faces(make: str) -> Callable[[Array, Array], Trained]:
    """A recogniser of OpenCV with its defaults: label of the nearest training image, and the distance."""

    def train(faces: Array, labels: Array) -> Trained:
        import cv2

        cv2.setNumThreads(1)
        recognizer = getattr(cv2.face, make)()  # type: ignore[attr-defined]
        recognizer.train(list(faces), labels.astype(np.int32))

        def answer(others: Array) -> tuple[Array, Array]:
            found = [recognizer.predict(face) for face in others]
            return np.array([label for label, _ in found]), -np.array([distance for _, distance in found])

        if make.startswith("LBPH"):
            values = 4 * sum(histogram.size for histogram in recognizer.getHistograms())
        else:
            values = 4 * (recognizer.getEigenVectors().size + sum(own.size for own in recognizer.getProjections()))
        return Trained(answer, values)

    return train


def eigenfaces_svm(faces: Array, labels: Array) -> Trained:
    """As in scikit-learn's own example: whitened eigenfaces, an SVM with RBF kernel, gamma and C by cross-validation."""
    from sklearn.decomposition import PCA
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    def flat(images: Array) -> Array:
        return images.reshape(len(images), -1).astype(np.float32) / 255

    eigenfaces = PCA(min(150, len(faces) // 2), whiten=True, svd_solver="randomized", random_state=0)
    model = make_pipeline(eigenfaces, SVC(class_weight="balanced"))
    grid = {"svc__C": [1, 1000], "svc__gamma": [0.0005, 0.001, 0.005]}
    found = GridSearchCV(model, grid, cv=3).fit(flat(faces), labels).best_estimator_

    def answer(others: Array) -> tuple[Array, Array]:
        scores = found.decision_function(flat(others))
        return found.classes_[scores.argmax(axis=1)], scores.max(axis=1)

    return Trained(answer, len(pickle.dumps(found)) // 2)  # stored as doubles, although singles suffice


class Dlib:
    """dlib's ResNet, and the nearest training image. Vectors are cached on disk: each takes a twelfth of a second."""

    # Eyes, tip of the nose and corners of the mouth in its images of 150 x 150 (padding 0.25) ...
    CHIP = np.array([[47.6, 46.6], [100.5, 46.6], [74.0, 76.6], [50.4, 103.0], [97.6, 103.0]])
    # ... and in the aligned crops of 112 x 112 that it gets.
    ALIGNED = np.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]])

    def __init__(self, folder: Path) -> None:
        import cv2
        import dlib

        cv2.setNumThreads(1)
        self.weights, self.kept = needed(folder / "dlib.dat"), folder / "dlib_vectors.npz"
        self.model = dlib.face_recognition_model_v1(str(self.weights))
        self.move = cv2.estimateAffinePartial2D(self.ALIGNED, self.CHIP, method=cv2.LMEDS)[0]
        self.seen: dict[str, Array] = {}
        if self.kept.exists():
            with np.load(self.kept) as archive:
                self.seen = dict(zip(archive["keys"].tolist(), archive["vectors"], strict=True))

    def vector(self, face: Array) -> Array:
        import cv2

        chip = cv2.warpAffine(face, self.move, (150, 150), borderMode=cv2.BORDER_REPLICATE)
        return np.array(self.model.compute_face_descriptor(np.dstack([chip] * 3)), np.float32)

    def vectors(self, faces: Array) -> Array:
        keys = [hashlib.sha256(face.tobytes()).hexdigest() for face in faces]
        fresh = 0
        for key, face in zip(keys, faces, strict=True):
            if key not in self.seen:
                self.seen[key] = self.vector(face)
                fresh += 1
                if fresh % 200 == 0:
                    self.keep()
        if fresh:
            self.keep()
        return np.stack([self.seen[key] for key in keys])

    def keep(self) -> None:
        new = self.kept.with_suffix(".new.npz")
        np.savez(new, keys=np.array(list(self.seen)), vectors=np.stack(list(self.seen.values())))
        new.replace(self.kept)

    def train(self, faces: Array, labels: Array) -> Trained:
        known = self.vectors(faces)

        def answer(others: Array) -> tuple[Array, Array]:
            own = self.vectors(others) if len(others) > 1 else self.vector(others[0])[None]  # one is for timing
            squared = (own**2).sum(axis=1)[:, None] + (known**2).sum(axis=1) - 2 * own @ known.T
            return labels[squared.argmin(axis=1)], -squared.min(axis=1)

        return Trained(answer, self.weights.stat().st_size + known.nbytes)


RECOGNIZERS: dict[str, tuple[str, Callable[[Path], Callable[[Array, Array], Trained]]]] = {
    "OpenCV LBPH": ("crops", lambda _: opencv_faces("LBPHFaceRecognizer_create")),
    "OpenCV eigenfaces": ("crops", lambda _: opencv_faces("EigenFaceRecognizer_create")),
    "OpenCV Fisher faces": ("crops", lambda _: opencv_faces("FisherFaceRecognizer_create")),
    "scikit-learn eigenfaces, SVM": ("crops", lambda _: eigenfaces_svm),
    "dlib ResNet, nearest": ("aligned", lambda folder: Dlib(folder).train),
}


def answers(folder: Path, tasks: Path) -> None:
    """Print labels and scores of the test images, for each recogniser and task.

    TASKS has, for a set of faces S, S.crops and S.aligned (n, H, W); for a task k its set k.set, k.train and k.test, which
    are indices into them, and k.labels of the training images; and todo, JSON: the tasks of each recogniser. For the task
    named by `timed`, also the time of one face and the size.
    """
    with np.load(tasks) as archive:
        given = dict(archive)
    for name, numbers in json.loads(str(given["todo"])).items():
        view, prepare = RECOGNIZERS[name]
        with skip_on_error(name):
            train = prepare(folder)
            for k in numbers:
                faces = given[f"{given[f'{k}.set']}.{view}"]
                trained = train(faces[given[f"{k}.train"]], given[f"{k}.labels"])
                tested = faces[given[f"{k}.test"]]
                labels, scores = trained.answer(tested)
                cost = {}
                if k == given["timed"]:
                    cost["cost"] = timed(partial(trained.answer, tested[:1])) | {"bytes": trained.bytes}
                write_line(name, task=k, labels=labels.tolist(), scores=scores.tolist(), **cost)


def write_line(name: str, **facts: Any) -> None:
    print(json.dumps({"name": name, **facts}), flush=True)


@contextmanager
def skip_on_error(name: str) -> Iterator[None]:
    """Report an error of a peer, so that the others are still measured."""
    try:
        yield
    except BrokenPipeError:  # the output is closed
        raise
    except Exception as error:
        write_line(name, skipped=(str(error).strip().splitlines() or [type(error).__name__])[-1][:120])


def needed(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError("its weights are not available")
    return path


if __name__ == "__main__":
    folder, *files = map(Path, sys.argv[1:])
    if files:
        answers(folder, *files)
    else:
        times(folder)
