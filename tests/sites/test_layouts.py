"""Sites are found in every layout that is supported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from smg.errors import SmgError
from smg.sites.check import check_sites
from smg.sites.labels import Labels
from smg.sites.layouts import find_sites
from smg.sites.site import Site, canonical
from smg.sites.volume import Volume, read_volume, write_volume
from tests.conftest import scan, write_site
from tests.sites.test_volume import write_dicom

IMAGE, MASK = scan()


ALIASES = {"RUNMC": ["ISBI", "SiteA"], "HK": ["SiteF"]}


def cases(site: Site) -> list[str]:
    return [s.case for s in site.subjects]


def test_the_prostate_data_sets_own_layout_with_its_quirks(tmp_path: Path) -> None:
    write_site(tmp_path / "ISBI", 2)
    write_site(tmp_path / "HK", 3)
    (tmp_path / "HK" / "Case01_segmentation.nii.gz").rename(tmp_path / "HK" / "Case01_Segmentation.nii.gz")
    (tmp_path / "HK" / "._Case00.nii.gz").write_bytes(b"a resource fork")
    (tmp_path / "HK" / "notes.txt").write_text("not a scan")
    (tmp_path / ".hidden").mkdir()
    write_volume(tmp_path / "stray.nii.gz", IMAGE)  # beside the sites, and not a site itself
    sites = find_sites(tmp_path, ALIASES)
    assert list(sites) == ["HK", "RUNMC"]
    assert cases(sites["HK"]) == ["Case00", "Case01", "Case02"]
    assert sites["RUNMC"].subjects[0].identity == "RUNMC/Case00"
    assert not any(site.faults for site in sites.values())


@pytest.mark.parametrize(
    ("alias", "name"), [("ISBI", "RUNMC"), ("sitea", "RUNMC"), ("SiteF", "HK"), ("hk", "HK"), ("Mine", "Mine")]
)
def test_aliases(alias: str, name: str) -> None:
    assert canonical(alias, ALIASES) == name
    assert canonical(alias) == alias  # a name is an alias only where a configuration says so


def test_one_site_can_be_given_by_itself_or_picked_by_any_of_its_names(tmp_path: Path) -> None:
    write_site(tmp_path / "ISBI", 2)
    write_site(tmp_path / "HK", 2)
    assert Site.find(tmp_path / "ISBI", aliases=ALIASES).name == "RUNMC"
    assert {s.site for s in Site.find(tmp_path, "SiteA", ALIASES).subjects} == {"RUNMC"}
    assert Site.find(tmp_path, "ISBI").name == "ISBI"
    (tmp_path / "sites.csv").write_text("site,image,mask\nSITEA,a.nii,b.nii\n")
    assert list(find_sites(tmp_path / "sites.csv", ALIASES)) == ["RUNMC"]
    with pytest.raises(SmgError, match=r"2 sites \(HK, RUNMC\)"):
        Site.find(tmp_path, aliases=ALIASES)
    with pytest.raises(SmgError, match=r"no site 'Nowhere' .*HK, ISBI"):
        Site.find(tmp_path, "Nowhere")


def test_nnunet(tmp_path: Path) -> None:
    root = tmp_path / "Dataset005_Prostate"
    for case in ("p_01", "p_02"):
        write_volume(root / "imagesTr" / f"{case}_0000.nii.gz", IMAGE)
        write_volume(root / "labelsTr" / f"{case}.nii.gz", MASK)
    (root / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "zone": 1, "gland": [1, 2]}}))
    for site in (find_sites(root)["Dataset005_Prostate"], find_sites(tmp_path)["Dataset005_Prostate"]):
        assert cases(site) == ["p_01", "p_02"]
        assert site.label_values == {0, 1, 2}
    write_volume(root / "imagesTr" / "p_01_0000.mha", IMAGE)
    fault = find_sites(root)["Dataset005_Prostate"].faults[0]
    assert fault.reason == "case p_01 has 2 image files (p_01_0000.mha, p_01_0000.nii.gz); keep one"
    (root / "dataset.json").write_text("{}")
    with pytest.raises(SmgError, match=r"dataset.json: not a dataset.json of nnU-Net v2"):
        find_sites(root)


@pytest.mark.parametrize("labels", ["labels", "masks"])
def test_images_and_labels(tmp_path: Path, labels: str) -> None:
    for case in ("a", "b"):
        write_volume(tmp_path / "Mine" / "images" / f"{case}.nrrd", IMAGE)
        write_volume(tmp_path / "Mine" / labels / f"{case}.nii.gz", MASK)
    assert cases(find_sites(tmp_path)["Mine"]) == ["a", "b"]


def test_a_dicom_series_in_the_place_of_an_image(tmp_path: Path) -> None:
    (tmp_path / "Mine" / "images").mkdir(parents=True)
    (tmp_path / "Other").mkdir()
    for folder in (tmp_path / "Mine" / "images" / "a", tmp_path / "Other" / "a"):
        write_dicom(folder, IMAGE.array.clip(0), np.eye(3))
    mask = Volume(MASK.array, read_volume(tmp_path / "Other" / "a").affine)
    write_volume(tmp_path / "Mine" / "labels" / "a.nii.gz", mask)
    write_volume(tmp_path / "Other" / "a_segmentation.nii.gz", mask)
    sites = find_sites(tmp_path)
    assert {name: cases(site) for name, site in sites.items()} == {"Mine": ["a"], "Other": ["a"]}
    (fault,) = check_sites(sites.values(), Labels()).faults
    assert "the same scan twice" in fault.reason  # and nothing else is wrong: image and mask lie on one grid


def test_a_csv_of_paths(tmp_path: Path) -> None:
    write_site(tmp_path / "files", 2)
    table = tmp_path / "hospital.csv"
    table.write_text("image,mask\nfiles/Case00.nii.gz,files/Case00_segmentation.nii.gz\n")
    site = find_sites(table)["hospital"]
    assert cases(site) == ["Case00"]
    assert site.subjects[0].image == tmp_path / "files" / "Case00.nii.gz"
    table.write_text("site,case,image,mask\nHK,x,files/Case01.nii.gz,files/Case01_segmentation.nii.gz\n")
    assert cases(find_sites(table)["HK"]) == ["x"]
    table.write_text("image,mask\nfiles/Case00.nii.gz,\n")
    with pytest.raises(SmgError, match=r"hospital.csv: line 2 has no mask; fill in the cell"):
        find_sites(table)
    table.write_text("image,mask\n")
    with pytest.raises(SmgError, match=r"hospital.csv: lists no scan"):
        find_sites(table)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffImage;Mask\r\nfiles/Case00.nii.gz;files/Case00_segmentation.nii.gz\r\n;\r\n\r\n",
        "Case\tMASK \t IMAGE\n\tfiles/Case00_segmentation.nii.gz\tfiles/Case00.nii.gz\n\t\t\n",
        'image, mask\n"files/Case00.nii.gz", "files/Case00_segmentation.nii.gz"\n',
        "image,mask,,\nfiles\\Case00.nii.gz,files\\Case00_segmentation.nii.gz,,\n,,,\n",
    ],
    ids=["semicolons", "tabs", "quotes", "backslashes"],
)
def test_a_csv_as_a_spreadsheet_writes_it(tmp_path: Path, text: str) -> None:
    write_site(tmp_path / "files", 1)
    (tmp_path / "hospital.csv").write_bytes(text.encode())
    (subject,) = find_sites(tmp_path / "hospital.csv")["hospital"].subjects
    assert subject.case == "Case00"
    assert subject.image.exists()
    assert subject.mask.exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("scan,mask\na,b\n", "its first line .* columns image and mask"),
        ("image,image,mask\na,b,c\n", "its first line .* columns image and mask"),
        ("", "its first line .* columns image and mask"),
        ("image,mask\na,b\n\n,b\n", "line 4 has no image; fill in the cell"),
        ("image,mask\na,b\nc\n", "line 3 has no mask; fill in the cell"),
        ("image,mask\na,b\nc, d,e\n", "line 3 has 3 cells, and the first line has 2; quote"),
        ('image,mask\na,b\n"c,d\n', "line 3 is not CSV: unexpected end of data"),
        ("image,mask\na,b\na,c\n", "line 3: site hospital has two files a; add a column case"),
        ("image,mask\na\0,b\n", "not a CSV file in UTF-8"),
    ],
)
def test_a_bad_csv_is_one_line_that_names_file_and_row(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "hospital.csv").write_text(text)
    with pytest.raises(SmgError, match=rf"hospital\.csv: {sentence}"):
        find_sites(tmp_path / "hospital.csv")


def test_an_image_or_mask_without_the_other_is_a_fault(tmp_path: Path) -> None:
    write_site(tmp_path / "HK", 3)
    (tmp_path / "HK" / "Case00_segmentation.nii.gz").unlink()
    (tmp_path / "HK" / "Case01.nii.gz").unlink()
    site = Site.find(tmp_path / "HK")
    assert cases(site) == ["Case02"]
    assert [(f.subject, f.reason.partition(";")[0]) for f in site.faults] == [
        ("Case00", "image without mask"),
        ("Case01", "mask without image"),
    ]


def test_a_path_without_sites_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "scan.nii.gz").write_bytes(b"")
    with pytest.raises(SmgError, match=r"empty: no site found.*labelsTr"):
        find_sites(tmp_path / "empty")
    with pytest.raises(SmgError, match=r"nowhere: no such file or folder"):
        find_sites(tmp_path / "nowhere")
    with pytest.raises(SmgError, match=r"scan.nii.gz: neither a folder of sites nor a .csv file"):
        find_sites(tmp_path / "scan.nii.gz")


def test_one_site_under_two_names_is_refused(tmp_path: Path) -> None:
    write_site(tmp_path / "ISBI", 1)
    write_site(tmp_path / "RUNMC", 1)
    assert list(find_sites(tmp_path)) == ["ISBI", "RUNMC"]
    with pytest.raises(SmgError, match=r"two of its folders are site RUNMC"):
        find_sites(tmp_path, ALIASES)


def test_a_link_to_a_site_is_the_site_of_the_links_name(tmp_path: Path) -> None:
    """The folder behind a link may move, and have the same name for two hospitals."""
    for store in ("one", "two"):
        write_site(tmp_path / store / "data", 2)
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / f"Hospital {store}").symlink_to(tmp_path / store / "data")
    assert list(find_sites(tmp_path / "sites")) == ["Hospital one", "Hospital two"]
    assert Site.find(tmp_path / "sites" / "Hospital one").name == "Hospital one"


def test_the_label_ignore_of_nnunet_is_not_a_class(tmp_path: Path) -> None:
    site = write_site(tmp_path / "files", 1)
    for kind, name in (("imagesTr", "a_0000"), ("labelsTr", "a")):
        (tmp_path / "S" / kind).mkdir(parents=True)
        source = site / ("Case00.nii.gz" if kind == "imagesTr" else "Case00_segmentation.nii.gz")
        (tmp_path / "S" / kind / f"{name}.nii.gz").write_bytes(source.read_bytes())
    for labels, values in (({"prostate": 1, "ignore": 2}, {0, 1}), ({"prostate": 2, "ignore": 1}, {0, 2})):
        (tmp_path / "S" / "dataset.json").write_text(json.dumps({"labels": {"background": 0, **labels}}))
        assert find_sites(tmp_path / "S")["S"].label_values == values
    (fault,) = check_sites([Site.find(tmp_path / "S")], Labels()).faults
    assert "not expected: 1;" in fault.reason
