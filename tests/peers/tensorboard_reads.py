"""TensorBoard reads what a run with [logging] tensorboard wrote: every scalar equals that of metrics.jsonl, and the text of the first
sequence is that of the data file.

    python3 -m venv V && V/bin/pip install tensorboard
    shardrun run jobs/tiny-llama.toml --set logging.tensorboard=true
    V/bin/python tests/peers/tensorboard_reads.py runs/tiny-llama/latest
"""
import decimal
import json
import sys
import tomllib

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {
    "optimizer/learning_rate": "learning_rate",
    "optimizer/gradient_norm": "grad_norm",
    "speed/tokens_per_second": "tokens_per_second",
    "speed/step_seconds": "step_seconds",
    "memory/resident_bytes": "resident_bytes",
}


def main():
    run = sys.argv[1]
    wanted = {}
    for text in open(f"{run}/metrics.jsonl"):
        line = json.loads(text, parse_float=decimal.Decimal)
        if "loss" not in line:
            continue
        validation = line.get("event") == "validation"
        figures = {"loss/validation" if validation else "loss/train": line["loss"]}
        figures |= {tag: line[key] for tag, key in TAGS.items() if key in line}
        for tag, value in figures.items():
            wanted.setdefault(tag, {})[line["step"]] = value  # the later line of a step counts
    events = EventAccumulator(f"{run}/tensorboard", size_guidance={"scalars": 0})
    events.Reload()
    found = {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    assert wanted and found.keys() == wanted.keys(), (found.keys(), wanted.keys())
    for tag, values in wanted.items():
        assert found[tag].keys() == values.keys(), tag
        for step, value in values.items():
            # metrics.jsonl rounds to the digits that it shows, and an event holds a float.
            rounding = 0.5 * 10.0 ** decimal.Decimal(value).as_tuple().exponent
            assert abs(found[tag][step] - float(value)) <= rounding + 1e-6 * abs(float(value)), (tag, step, found[tag][step], value)
    spec = tomllib.load(open(f"{run}/job.toml", "rb"))
    texts = [event for tag in events.Tags()["tensors"] for event in events.Tensors(tag)]
    assert [tag for tag in events.Tags()["tensors"]] == ["data/first_sequence"], events.Tags()["tensors"]
    assert events.SummaryMetadata("data/first_sequence").plugin_data.plugin_name == "text"
    for event in texts:
        lines = event.tensor_proto.string_val[0].decode().splitlines()
        text = "\n".join(line[4:] for line in lines if line.startswith("    "))
        assert lines[0] == f"{spec['data']['sequence_length']} tokens, of which {spec['data']['sequence_length']} are predicted:", lines[0]
        assert any(text in open(file).read() for file in spec["data"]["files"]), text
    print(f"{len(texts)} texts, and {sum(map(len, wanted.values()))} scalars of {len(wanted)} kinds equal those of metrics.jsonl")


main()
