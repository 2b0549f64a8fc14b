"""DistributedDataParallel under shardrun: torchrun's variables, steps that `shardrun top` shows, a checkpoint when it is asked to stop."""
import argparse
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))

    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    batch = int(os.environ.get("SHARDRUN_RANK_BATCH", 32))
    checkpoint = os.path.join(os.environ.get("SHARDRUN_RUN_DIR", "."), "checkpoint.pt")

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if gpu else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = 1
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1

    numbers = torch.Generator().manual_seed(dist.get_rank() + 100 * first)
    for step in range(first, steps + 1):
        x = torch.randn(batch, 8, generator=numbers).to(device)
        loss = (model(x) - torch.sin(x.sum(1, keepdim=True))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # All ranks stop behind the same step: any of them may have been asked first.
        said = torch.tensor([float(loss.detach()), float(bool(stop))], device=device)
        dist.all_reduce(said)
        line = {"step": step, "loss": said[0].item() / dist.get_world_size(), "time": time.time(), "total_steps": steps}
        with open(os.environ.get("SHARDRUN_METRICS_FILE", os.devnull), "a") as file:
            file.write(json.dumps(line) + "\n")
        if said[1] > 0 or step == steps:
            if dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)
                print(f"saved step {step}, loss {line['loss']:.4f}")
            dist.barrier()
            break
    dist.destroy_process_group()
    sys.exit(75 if said[1] > 0 and step < steps else 0)


if __name__ == "__main__":
    main()
