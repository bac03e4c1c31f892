"""What each process of a job runs: the tiny stream."""

import sys
from pathlib import Path

import torch.distributed as distributed

from tests.learner.streams import tiny_stream

distributed.init_process_group("gloo")
settings = {"method": "sga", "memory": "style", "merge": 0.6, "share": True, "iterations": int(sys.argv[3])}
tiny_stream(Path(sys.argv[1]), **settings).run(Path(sys.argv[2]))
distributed.destroy_process_group()
