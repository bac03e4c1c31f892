"""Contours, the gallery, the viewer's scans and the demo's picture, from a tiny stream that is trained here."""

from __future__ import annotations

import base64
import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from smg.errors import SmgError
from smg.report.collect import collect
from smg.report.demo_picture import draw_demo, tiles_of
from smg.report.gallery import exemplar_pictures, gallery, outlines, path_of, ranked_cases
from smg.report.pictures import contours
from smg.report.runs import find_runs
from smg.report.viewer import grey_levels, nifti
from smg.sites.volume import read_volume
from tests.learner.streams import tiny_stream, write_sites
from tests.report.random_runs import changed


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the data, and a folder with runs of two methods on it."""
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMG_CACHE", str(folder / "cache"))
        data = write_sites(folder / "data")
        for method in ("finetune", "sga+c"):
            tiny_stream(data, method=method).run(folder / "bench" / method)
    return data, folder / "bench"


def test_predictions_are_those_the_results_were_measured_on(bench: tuple[Path, Path]) -> None:
    data, folder = bench
    run = find_runs([folder / "sga+c"])[0]
    seen = contours(run.folder, data, "A", (1, 2))
    for number, learned in ((1, "A"), (2, "B")):
        rows = [row for row in run.results.subjects if row.round == learned and row.site == "A"]
        assert [s.case for s in seen] == [row.subject for row in rows]
        assert [s.dsc(number) for s in seen] == [row.classes["foreground"]["dsc"] for row in rows]
    assert seen[0].truth.shape == seen[0].scan.array.shape == seen[0].predicted[1].shape


def test_data_without_the_tested_cases_is_refused(bench: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = bench
    with pytest.raises(SmgError, match="no case"):
        contours(folder / "sga+c", data, "A", (1,), cases=["Case99"])
    with pytest.raises(SmgError, match="no site"):
        contours(folder / "sga+c", data, "Z", (1,))
    with pytest.raises(SmgError, match="smg run"):
        contours(tmp_path, data, "A", (1,))


def test_a_site_is_found_by_the_aliases_of_its_run(bench: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = bench
    run = tmp_path / "run"
    shutil.copytree(folder / "finetune", run)
    (run / "run.yaml").write_text("aliases: {A: [North]}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "North").symlink_to(data / "A")
    assert {seen.site for seen in contours(run, tmp_path / "data", "A", (1,))} == {"A"}


def test_the_box_holds_the_gland(bench: tuple[Path, Path]) -> None:
    data, folder = bench
    seen = contours(folder / "finetune", data, "A", (1,))[0]
    assert seen.inside() == [1, 2, 3, 4]  # as write_sites makes the masks
    truth = seen.axial(seen.truth)
    rows, columns = seen.box(margin_mm=2.0)
    assert truth[:, rows, columns].sum() == truth.sum()
    assert truth[0][rows, columns].size < truth[0].size


def test_an_outline_goes_round_its_mask() -> None:
    mask = np.zeros((9, 9), np.uint8)
    mask[2:6, 3:8] = 1
    (line,) = outlines(mask)
    assert np.allclose(line.min(axis=0), (3, 2), atol=0.5)
    assert np.allclose(line.max(axis=0), (8, 6), atol=0.5)
    assert path_of(np.zeros((4, 4))) == ""
    edge = outlines(np.ones((4, 4)))[0]  # a mask that touches the border is closed too
    assert np.allclose(edge[0], edge[-1])


def test_the_gallery_has_the_sites_of_the_paper_s_figure(bench: tuple[Path, Path]) -> None:
    data, folder = bench
    shown = gallery(collect([folder]), data)
    assert [part.site for part in shown.parts] == ["A", "C"]  # first and held-out; two rounds have no middle
    assert [(part.after, part.end) for part in shown.parts] == [(1, 2), (3, 2)]
    subject = shown.as_json()["parts"][0]["subjects"][0]
    assert [m["name"] for m in subject["methods"]] == ["finetune", "sga+c"]
    assert len(subject["slices"]) == len(subject["truth"]) == len(subject["methods"][0]["end"])
    assert subject["slices"][0].startswith("data:image/jpeg;base64,")


def test_best_median_and_worst_are_by_the_mean_over_methods(bench: tuple[Path, Path]) -> None:
    runs = find_runs([bench[1]])
    last, made = runs[0].order[-1], []
    for run, scores in zip(runs, ((0.9, 0.5, 0.7, 0.1), (0.8, 0.6, 0.7, 0.2)), strict=True):
        rows = [
            {"round": last, "site": "A", "subject": f"Case{n}", "classes": {"foreground": {"dsc": dsc}}}
            for n, dsc in enumerate(scores)
        ]
        made.append(changed(run, subjects=rows))
    assert ranked_cases(made, "A") == {"best": "Case0", "median": "Case1", "worst": "Case3"}


def test_a_scan_in_the_page_is_the_scan_voxel_for_voxel(bench: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = bench
    seen = contours(folder / "finetune", data, "A", (1,))[0]
    path = tmp_path / "mask.nii.gz"
    path.write_bytes(base64.b64decode(nifti(seen.truth, seen.scan.affine)))
    back = read_volume(path)
    assert np.array_equal(back.array, seen.truth)
    assert np.allclose(back.affine, seen.scan.affine, atol=1e-4)
    assert b"Case" not in gzip.decompress(path.read_bytes())[:348]  # a fresh header: no name in it
    assert grey_levels(seen.scan.array).dtype == np.uint8


def test_exemplars_have_pictures_by_alias(bench: tuple[Path, Path]) -> None:
    pictures = exemplar_pictures(bench[1] / "sga+c" / "model")
    chosen = [name for r in collect([bench[1]]).records[bench[1] / "sga+c"] for name in r.selection.chosen]
    assert set(pictures) == set(chosen)
    assert exemplar_pictures(bench[1] / "finetune" / "model") == {}


def test_the_demo_s_picture(bench: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = bench
    runs = find_runs([folder])
    draw_demo(runs, data, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    turned = changed(runs[1], stream={"order": ["B", "A"], "unseen": "C"})
    with pytest.raises(SmgError, match="several streams"):
        draw_demo([runs[0], turned], data, tmp_path / "demo.png")
    tiles = tiles_of(contours(runs[0].folder, data, "A", (1,)))
    assert len(tiles) == len({number for _, number in tiles}) == 4
