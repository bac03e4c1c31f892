"""Subjects of several channels are found in every layout, and each missing or wrong file is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from smg.errors import SmgError
from smg.prepare.cache import key_of
from smg.sites.check import Check, check_sites, examine
from smg.sites.labels import Labels
from smg.sites.layouts import find_sites, is_mask
from smg.sites.scans import group_channels, mask_files
from smg.sites.site import Site
from smg.sites.volume import Volume, write_volume
from tests.conftest import affine, scan, write_site
from tests.sites.test_volume import write_dicom

LABELS = {"background": 0, "prostate": 1}


def touch(folder: Path, *names: str) -> None:
    """Write empty files: layouts are recognised by names alone."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def nnunet(folder: Path, *images: str, masks: tuple[str, ...] = ("a", "b"), **description: object) -> Site:
    """Write a site in nnU-Net's layout, with a dataset.json if it has entries, and return the site."""
    touch(folder / "imagesTr", *(f"{name}.nii.gz" for name in images))
    touch(folder / "labelsTr", *(f"{name}.nii.gz" for name in masks))
    if description:
        (folder / "dataset.json").write_text(json.dumps({"labels": LABELS, **description}))
    return Site.find(folder)


def files(site: Site) -> dict[str, list[str]]:
    return {subject.case: [path.name for path in subject.images] for subject in site.subjects}


def faults(site: Site) -> list[tuple[str, str, str]]:
    """Return each fault's case, file and cause; what to do, after a semicolon, is left out."""
    return [(fault.subject, Path(fault.file).name, fault.reason.partition(";")[0]) for fault in site.faults]


PAIRS = ("a_0000", "a_0001", "b_0000", "b_0001")
FOUND = {case: [f"{case}_0000.nii.gz", f"{case}_0001.nii.gz"] for case in "ab"}


@pytest.mark.parametrize(
    ("description", "channels"),
    [
        ({"channel_names": {"0": "T2", "1": "ADC"}}, ("T2", "ADC")),
        ({"channel_names": {"1": "T2", "0": "ADC"}}, ("ADC", "T2")),  # by number, not by position
        ({"modality": {"0": "T2", "1": "ADC"}, "labels": {"0": "background", "1": "prostate"}}, ("T2", "ADC")),
        ({"numTraining": 2}, ("0000", "0001")),
        ({}, ("0000", "0001")),
    ],
    ids=["names", "order", "first version", "no names", "no description"],
)
def test_nnunets_channels(tmp_path: Path, description: dict[str, object], channels: tuple[str, ...]) -> None:
    site = nnunet(tmp_path / "S", *PAIRS, **description)
    assert site.channels == channels
    assert files(site) == FOUND
    assert site.subjects[0].image == tmp_path / "S" / "imagesTr" / "a_0000.nii.gz"
    assert site.label_values == ({0, 1} if description else None)
    assert not site.faults


def test_channels_are_ordered_by_number_past_ten(tmp_path: Path) -> None:
    names = {str(number): f"echo {number}" for number in range(11)}
    images = [f"a_{number:04d}" for number in reversed(range(11))]
    site = nnunet(tmp_path / "S", *images, masks=("a",), channel_names=names)
    assert site.channels == tuple(f"echo {number}" for number in range(11))
    assert files(site) == {"a": [f"a_{number:04d}.nii.gz" for number in range(11)]}


def test_one_channel_has_its_name_or_is_called_image(tmp_path: Path) -> None:
    assert nnunet(tmp_path / "S", "a_0000", "b_0000").channels == ("image",)
    assert nnunet(tmp_path / "S", channel_names={"0": "T2"}).channels == ("T2",)
    assert Site.find(write_site(tmp_path / "flat", 1)).channels == ("image",)


@pytest.mark.parametrize("names", [{"0": "T2", "2": "ADC"}, {"1": "T2"}, ["T2", "ADC"], {"first": "T2"}])
def test_channel_names_that_do_not_count_from_zero_are_refused(tmp_path: Path, names: object) -> None:
    with pytest.raises(SmgError, match=r"dataset.json: no usable 'channel_names'; number the channels from 0"):
        nnunet(tmp_path / "S", *PAIRS, channel_names=names)


LACKS = "no such file: case {} lacks channel {}, which the site has"
NAMES = {"channel_names": {"0": "T2", "1": "ADC"}}


@pytest.mark.parametrize(
    ("images", "description", "fault"),
    [
        (["a_0000", "b_0000", "b_0001"], NAMES, ("a", "a_0001.nii.gz", LACKS.format("a", "ADC"))),
        (["a_0001", "b_0000", "b_0001"], NAMES, ("a", "a_0000.nii.gz", LACKS.format("a", "T2"))),
        (["a_0000", "b_0000", "b_0001"], {}, ("a", "a_0001.nii.gz", LACKS.format("a", "0001"))),
        ([*PAIRS, "a_0002"], NAMES, ("a", "a_0002.nii.gz", "channel 0002 is not in dataset.json, which lists T2, ADC")),
    ],
    ids=["second", "first", "by number", "one more"],
)  # fmt: skip
def test_a_case_with_other_channels_than_its_site_is_a_fault(
    tmp_path: Path, images: list[str], description: dict[str, object], fault: tuple[str, str, str]
) -> None:
    site = nnunet(tmp_path / "S", *images, **description)
    assert faults(site) == [fault]
    assert files(site) == {"b": FOUND["b"]}


def test_a_gap_in_the_numbers_is_a_fault_of_every_case(tmp_path: Path) -> None:
    site = nnunet(tmp_path / "S", "a_0000", "a_0002", "b_0000", "b_0002")
    assert faults(site) == [(case, f"{case}_0001.nii.gz", LACKS.format(case, "0001")) for case in "ab"]
    site = nnunet(tmp_path / "T", "a_2019", masks=("a",))
    assert faults(site) == [("a", "a_0000.nii.gz", LACKS.format("a", "0000"))]


def test_repeated_channels_and_images_or_masks_alone_are_faults(tmp_path: Path) -> None:
    touch(tmp_path / "S" / "imagesTr", "a_0001.mha")
    site = nnunet(tmp_path / "S", *PAIRS, "c_0000", masks=("a", "b", "d"), **NAMES)
    assert faults(site) == [
        ("a", "a_0001.nii.gz", "case a has 2 files of channel ADC (a_0001.mha, a_0001.nii.gz)"),
        ("c", "c_0000.nii.gz", "image without mask"),
        ("c", "c_0001.nii.gz", LACKS.format("c", "ADC")),
        ("d", "d.nii.gz", "mask without image"),
    ]
    assert files(site) == {"b": FOUND["b"]}


def test_channels_of_images_and_labels(tmp_path: Path) -> None:
    touch(tmp_path / "S" / "images", *(f"{name}.nii.gz" for name in (*PAIRS, "c_0000", "c_0001")))
    touch(tmp_path / "S" / "labels", "a.nii.gz", "b.mha")
    site = Site.find(tmp_path / "S")
    assert site.channels == ("0000", "0001")
    assert files(site) == FOUND
    assert faults(site) == [("c", "c_0000.nii.gz", "image without mask")]


@pytest.mark.parametrize(
    ("images", "masks", "found"),
    [
        (["p_0001", "p_0002"], ["p_0001", "p_0002"], ["p_0001", "p_0002"]),  # patients by number
        (["p_0001", "p_0002"], ["p_0001", "p_0002", "p"], ["p_0001", "p_0002"]),
        (["a_0000", "b"], ["a", "b"], ["b"]),  # not every image has a number
    ],
)
def test_a_number_that_belongs_to_the_case(
    tmp_path: Path, images: list[str], masks: list[str], found: list[str]
) -> None:
    touch(tmp_path / "S" / "images", *(f"{name}.nii" for name in images))
    touch(tmp_path / "S" / "labels", *(f"{name}.nii" for name in masks))
    site = Site.find(tmp_path / "S")
    assert site.channels == ("image",)
    assert list(files(site)) == found


def test_a_flat_folder_has_one_channel(tmp_path: Path) -> None:
    touch(tmp_path / "S", "a_0000.nii", "a_0000_segmentation.nii", "a_0001.nii", "a_0001_segmentation.nii")
    site = Site.find(tmp_path / "S")
    assert site.channels == ("image",)
    assert list(files(site)) == ["a_0000", "a_0001"]


def table(folder: Path, text: str) -> Path:
    (folder / "hospital.csv").write_text(text)
    return folder / "hospital.csv"


def test_channels_of_a_csv(tmp_path: Path) -> None:
    path = table(tmp_path, "case,image3,mask,image,image2\nx,c.nii,m.nii,a.nii,b.nii\n")
    site = Site.find(path)
    assert site.channels == ("image", "image2", "image3")
    assert files(site) == {"x": ["a.nii", "b.nii", "c.nii"]}
    assert site.subjects[0].images[2] == tmp_path / "c.nii"


def test_an_empty_cell_of_a_channel_is_a_fault_with_its_line(tmp_path: Path) -> None:
    rows = "image,image2,mask,site\na.nii,b.nii,m.nii,X\nc.nii,,m.nii,X\nd.nii,,m.nii,Y\n"
    sites = find_sites(table(tmp_path, rows))
    assert {name: site.channels for name, site in sites.items()} == {"X": ("image", "image2"), "Y": ("image",)}
    assert files(sites["X"]) == {"a": ["a.nii", "b.nii"]}
    reason = "line 3 has no image2: case c lacks channel image2, which the site has"
    assert faults(sites["X"]) == [("c", "hospital.csv", reason)]
    assert not sites["Y"].faults


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("image,image3,mask", "its columns of channels are image, image3; name them image, image2"),
        ("image,image2,image2,mask", "its columns of channels are image, image2, image2; name them image, image2"),
        ("image1,image2,mask", "its first line .* columns image and mask"),
    ],
)
def test_channel_columns_that_are_not_numbered_in_order(tmp_path: Path, columns: str, sentence: str) -> None:
    with pytest.raises(SmgError, match=sentence):
        find_sites(table(tmp_path, f"{columns}\na,b,c,d\n"))


def test_a_mask_beside_the_channels_of_its_scan_is_recognised(tmp_path: Path) -> None:
    touch(tmp_path, "S/imagesTr/a_0000.mha", "S/imagesTr/b.nii", "T/images/a_0000.nii.gz", "T/images/c.nii")
    masks = ("S/labelsTr/a.nii.gz", "S/labelsTr/b.nii", "T/labels/a.nii.gz", "T/labels/c.nii")
    others = ("S/labelsTr/c.nii", "T/labels/b.nii", "S/imagesTr/a_0000.mha")
    assert [is_mask(tmp_path / name) for name in masks] == [True] * 4
    assert [is_mask(tmp_path / name) for name in others] == [False] * 3


def two_channels(folder: Path, subjects: int = 2) -> Site:
    """Write small scans of two channels in nnU-Net's layout: those of seeds 0, 1 ... and those of seeds 100, 101 ..."""
    for number in range(subjects):
        image, mask = scan(number)
        write_volume(folder / "imagesTr" / f"Case0{number}_0000.nii.gz", image)
        write_volume(folder / "imagesTr" / f"Case0{number}_0001.nii.gz", scan(100 + number)[0])
        write_volume(folder / "labelsTr" / f"Case0{number}.nii.gz", mask)
    (folder / "dataset.json").write_text(json.dumps({"labels": LABELS, "channel_names": {"0": "T2", "1": "ADC"}}))
    return Site.find(folder)


def check(folder: Path) -> Check:
    return check_sites(find_sites(folder).values(), Labels())


def test_facts_of_several_channels(tmp_path: Path) -> None:
    site = two_channels(tmp_path / "S")
    write_volume(site.subjects[1].images[1], Volume(scan(7)[0].array.astype(np.int16) * 3 - 500, affine()))
    result = check(tmp_path)
    facts = result.as_json()["sites"]["S"]  # type: ignore[index]
    assert facts["channels"] == ["T2", "ADC"]
    assert (facts["subjects"], facts["slices"], facts["foreground_slices"]) == (2, 12, 8)  # a slice counts once
    voxels = np.concatenate([scan(0)[0].array, scan(100)[0].array, scan(1)[0].array, scan(7)[0].array * 3 - 500])
    assert facts["intensity"] == [voxels.min(), voxels.max()]
    assert result.faults == []


def test_every_channel_is_read(tmp_path: Path) -> None:
    found = examine(two_channels(tmp_path / "S").subjects[0], Labels())
    assert found.image is found.images[0]
    for image, seed in zip(found.images, (0, 100), strict=True):
        np.testing.assert_array_equal(image.array, scan(seed)[0].array)


OTHER = scan(9)[0].array
MOVED = affine()
MOVED[0, 3] += 9.0


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        (Volume(OTHER * 0 + 7, affine()), "constant image"),
        (Volume(np.full(OTHER.shape, np.nan, np.float32), affine()), "2880 voxels are NaN or infinite"),
        (Volume(OTHER[:-1], affine()), "channel grids differ: sizes differ: 24 x 20 x 6 and 24 x 20 x 5; "
                                       "resample it to the grid of Case01_0000.nii.gz"),
        (Volume(OTHER, MOVED), "channel grids differ: same size, but positions differ by up to 9.0 mm; "
                               "resample it to the grid of Case01_0000.nii.gz"),
        (None, "not a NIfTI file"),
    ],
    ids=["constant", "nan", "size", "place", "corrupt"],
)  # fmt: skip
def test_a_fault_of_a_later_channel_names_its_file(tmp_path: Path, volume: Volume | None, sentence: str) -> None:
    file = two_channels(tmp_path / "S").subjects[1].images[1]
    if volume is None:
        file.write_bytes(b"x" * 999)
    else:
        write_volume(file, volume)
    (fault,) = check(tmp_path).faults
    assert (fault.site, fault.subject, fault.file) == ("S", "Case01", str(file))
    assert sentence in fault.reason


def test_a_repeated_subject_is_found_by_all_its_channels(tmp_path: Path) -> None:
    site = two_channels(tmp_path / "S", 3)
    one, other = (examine(subject, Labels()) for subject in site.subjects[:2])
    write_volume(site.subjects[1].images[0], scan(0)[0])
    half = examine(site.subjects[1], Labels())  # its first channel is now that of Case00
    assert len({one.content, other.content, half.content}) == len({one.turned, other.turned, half.turned}) == 3
    assert check(tmp_path).faults == []
    write_volume(site.subjects[1].images[1], scan(100)[0])
    (fault,) = check(tmp_path).faults
    assert fault.subject == "Case01"
    assert "the same scan twice" in fault.reason


def test_the_key_of_a_prepared_subject_depends_on_every_channel(tmp_path: Path) -> None:
    subject = two_channels(tmp_path / "S").subjects[0]
    before = key_of(subject, {})
    write_volume(subject.images[1], scan(9)[0])
    assert key_of(subject, {}) != before


def grouped(folder: Path, *names: str, n: int = 2) -> tuple[list[list[str]], list[str]]:
    groups, errors = group_channels([folder / name for name in names], n)
    return [[str(path.relative_to(folder)) for path in group] for group in groups], [str(error) for error in errors]


def test_scans_of_one_channel_are_their_own(tmp_path: Path) -> None:
    assert grouped(tmp_path, "a_0001.nii", "a_0000.nii", "gone.nii", n=1) == (
        [["a_0001.nii"], ["a_0000.nii"], ["gone.nii"]], [])  # fmt: skip


def test_scans_that_belong_together(tmp_path: Path) -> None:
    touch(tmp_path, "a_0000.nii", "a_0001.nii", "b_0000.nii.GZ", "b_0001.nii.GZ", "t/a_0000.nii", "t/a_0001.mha")
    a, b, t = (["a_0000.nii", "a_0001.nii"], ["b_0000.nii.GZ", "b_0001.nii.GZ"], ["t/a_0000.nii", "t/a_0001.mha"])
    assert grouped(tmp_path, "a_0000.nii", "a_0001.nii") == ([a], [])
    assert grouped(tmp_path, "t/a_0001.mha", "b_0001.nii.GZ", "a_0001.nii", "b_0000.nii.GZ") == ([t, b, a], [])


def test_a_dicom_series_for_each_channel(tmp_path: Path) -> None:
    for number in (0, 1):
        write_dicom(tmp_path / f"a_000{number}", scan(number)[0].array.clip(0), np.eye(3))
    assert grouped(tmp_path, "a_0001") == ([["a_0000", "a_0001"]], [])
    assert mask_files([tmp_path / "a_0000"], tmp_path / "masks", n=2) == [tmp_path / "masks" / "a.nii.gz"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("b_0000.nii", "b_0001.nii: no such file; {}/b_0000.nii needs all 2 channels"),
        ("c_0001.nii", "c_0000.nii: no such file; {}/c_0001.nii needs all 2 channels"),
        ("gone_0000.nii", "gone_0000.nii: no such file; {}/gone_0000.nii needs all 2 channels"),
        ("a_0002.nii", "a_0002.nii: not one of the 2 channels"),
        ("d.nii", "d.nii: not one of the 2 channels"),
        ("a_0000.mha", "a_0000.mha: {}/a_0000.nii is the same channel"),
    ],
)
def test_a_channel_that_is_missing_or_too_many_does_not_stop_the_others(
    tmp_path: Path, name: str, sentence: str
) -> None:
    touch(tmp_path, "a_0000.nii", "a_0001.nii", "a_0000.mha", "a_0002.nii", "b_0000.nii", "c_0001.nii", "d.nii")
    found, errors = grouped(tmp_path, "a_0000.nii", name)
    assert found == [["a_0000.nii", "a_0001.nii"]]
    assert len(errors) == 1
    assert errors[0].startswith(f"{tmp_path}/{sentence.format(tmp_path)}")


def test_a_mask_is_named_by_its_case(tmp_path: Path) -> None:
    touch(
        tmp_path, "s/a_0000.nii.gz", "s/a_0001.nii.gz", "t/a_0000.mha", "s/a_0001_0000.nii.gz", "s/a_0001_0001.nii.gz"
    )
    out = tmp_path / "masks"
    assert mask_files([tmp_path / "s/a_0000.nii.gz"], out) == [out / "a_0000.nii.gz"]
    assert mask_files([tmp_path / "s/a_0000.nii.gz"], out, n=2) == [out / "a.nii.gz"]
    both = [tmp_path / "s/a_0000.nii.gz", tmp_path / "t/a_0000.nii.gz"]
    assert mask_files(both, out, n=2) == [out / "s/a.nii.gz", out / "t/a.nii.gz"]
    scans = [tmp_path / "s/a_0000.nii.gz", tmp_path / "s/a_0001_0000.nii.gz"]
    mask, refused = mask_files(scans, tmp_path / "s", overwrite=True, n=2)
    assert mask == tmp_path / "s" / "a.nii.gz"
    assert "the mask would overwrite the scan" in str(refused)  # it would be a_0001.nii.gz, a channel of the first
