"""Blend checkpoints that went on from one another: python blend.py OUT.pt BASE.pt OTHER.pt SHARE [OTHER.pt SHARE ...]

Every share moves the base that far towards the other model.
"""
import sys

import torch


def main():
    out, base_path, *others = sys.argv[1:]
    base = torch.load(base_path, map_location="cpu")
    blended = {name: weight.clone() for name, weight in base["weights"].items()}
    for path, share in zip(others[::2], others[1::2]):
        other = torch.load(path, map_location="cpu")["weights"]
        for name, weight in base["weights"].items():
            blended[name] += float(share) * (other[name] - weight)
    torch.save({"config": base["config"], "weights": blended}, out)


if __name__ == "__main__":
    main()
