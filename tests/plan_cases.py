"""The plans whose whole text is committed in tests/data/plans: what each shows, and its command line."""
from nibble_program import ROOT

MODELS = "tests/data/models"
PLANS = ROOT / "tests/data/plans"

# Name of the file: arguments after `nibble plan`. All machines are declared, so that every machine prints the same.
CASES = {
    "gpt_oss_20b_on_a_cpu": ["gpt-oss-20b", "--as", "cpu"],
    "gpt_oss_20b_on_a_cpu_in_fewer_bits": ["gpt-oss-20b", "--as", "cpu", "--quantization", "q8", "--kv-cache-dtype", "fp8",
                                           "--max-model-len", "8192", "--max-num-seqs", "4"],
    "gpt_oss_20b_on_an_h100": ["gpt-oss-20b", "--as", "h100x1"],
    "gpt_oss_120b_on_an_h200": ["gpt-oss-120b", "--as", "h200x1"],
    "gpt_oss_120b_on_an_h200_with_fp8_keys_and_values": ["gpt-oss-120b", "--as", "h200x1", "--kv-cache-dtype", "fp8"],
    "gpt_oss_120b_split_over_four": ["gpt-oss-120b", "--as", "h200x4", "--tp", "4"],
    "gpt_oss_120b_in_two_processes": ["gpt-oss-120b", "--as", "h200x4", "--tp", "4", "--nnodes", "2", "--node-rank", "1"],
    "gpt_oss_120b_with_sequences_of_each_gpu": ["gpt-oss-120b", "--as", "h200x4", "--tp", "4", "--dp", "4"],
    "qwen3_30b_on_a_cpu": ["Qwen3-30B-A3B", "--as", "cpu"],
    "qwen3_30b_on_an_h200": ["Qwen3-30B-A3B", "--as", "h200x1"],
    "qwen3_235b_takes_as_many_as_hold_it": ["Qwen3-235B-A22B", "--as", "h200x8"],
    "qwen3_next_keeps_a_state": ["Qwen3-Next-80B-A3B", "--as", "h100x4", "--max-num-seqs", "32"],
    "qwen3_6_27b_on_a_cpu_in_fewer_bits": ["Qwen3.6-27B", "--as", "cpu", "--quantization", "q8"],
    "glm_4_7_flash_on_a_cpu": ["GLM-4.7-Flash", "--as", "cpu"],
    "deepseek_v3_on_eight_h200": ["DeepSeek-V3", "--as", "h200x8"],
    "deepseek_r1_on_blackwell": ["DeepSeek-R1", "--as", "b200x8"],
    "refused_runner_of_two_layouts": ["gpt-oss-120b", "--as", "h200x4", "--tp", "4", "--ep", "4",
                                      "--moe-runner-backend", "flashinfer_cutedsl", "--moe-a2a-backend", "deepep"],
    "refused_model_larger_than_the_gpu": ["Qwen3-235B-A22B", "--as", "h100x1"],
    "pairs_of_runner_and_exchange": ["gpt-oss-120b", "--as", "h200x4", "--tp", "4", "--ep", "4", "--matrix"],
}


def text_of(run, arguments):
    """The command, then what it printed."""
    code, out, err = run("plan", f"{ROOT}/{MODELS}/{arguments[0]}", *arguments[1:])
    assert code == (2 if err else 0), (code, err)
    return "$ nibble plan " + " ".join(arguments) + "\n\n" + out + err
