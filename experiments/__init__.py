"""The experiments behind REPRODUCIBILITY.md: run from the repository's root, as `python -m experiments.NAME`.

| module | |
|---|---|
| `afterwards` | measures finished runs beyond their test parts |
| `publish` | copies a bench's numbers to `results/` |
| `evidence` | writes the pages that follow from `results/` (with `bench_pages`, `claims`, `aims`, `explanations`) |
| `reproduce` | makes a published run again and compares every number |
| `federation` | learns a stream over hospitals as separate processes, and with all data in one place |
| `nnunet` | compares a run with nnU-Net at equal processor time |
| `alignment_share`, `buffer`, `coarser`, `phantom_shift`, `spectra`, `spikes` | answer one question each |
| `small_organs` | measures whether small classes are learned, on phantoms |
| `showcase` | makes the documentation's example report from phantoms |

The grids beside them (`*.yaml`) are for `smg bench`.
"""
