"""What of the C++ tests each kind of run takes (tools/run_tests.py): names of programs, and filters of GoogleTest's."""

# Rooms that read what strangers wrote, or keep what many share: the selection of `make test-sanitized`. The extended run
# has the other rooms in a part of its own.
SANITIZED = ("cache", "checkpoint", "grammar", "sched", "server", "text")
# How much of what is drawn at random the extended run does; `make test` does as much as the sources say.
EXTENDED_COUNTS = {"SIMULATIONS": "100000"}
# Programs of tests that run on the emulation of a GPU: of the C++ tests they take longest. `make test` leaves them to
# `make test-sanitized`; it has what tests/ runs there, whole models and doctor's checks of all kernels.
EMULATION = ("gpu_emulation", "gpu_emulation_worker", "gpu_ranks")
# Cases on the emulated GPU that take longest and ask for equal bits in more ways than others do, which walk through the
# same kernels. The extended run has them, and so has every record of a GPU, whose hash of the device code is checked.
EMULATED = {"gpu_emulation": "-AttentionOnTheGpu.GivesFewSequences*:AttentionOnTheGpu.ARowsBits*",
            "gpu_emulation_worker": "-*.NorDoTheyOn*:GpuEngine.WhatIsCancelled*:GpuWorkerOnTheGpu.ChangedLogits*:DeepseekV3OnTheGpu.ASequences*"
                                    ":Qwen3MoeOnTheGpu.ASequences*:GpuRanks.GptOss*:GpuRanks.Qwen3*:GpuRanks.Matrices*"
                                    ":RanksOfFamilies.Qwens*:RanksOfFamilies.Deep*:RanksOfFamilies.Matrices*:RanksOfFamilies.Rows*:RanksOfFamilies.GoOn*"
                                    ":MergedRanks.Qwens*:MergedRanks.Deep*:MergedRanks.Matrices*",
            "gpu_ranks": "-*.PairsOfBlocks*:*.StandsManyCalls*:NormCodesOnGpus.AreThose*:NormCodesOnGpus.StandMany*"}
# Left out where every access to shared memory is watched, which takes 20 times as long.
WATCHED = {"gpu_races": "-AttentionOnTheGpu.GivesTheSameBitsEveryTime:AttentionOnTheGpu.ARowsBits*:AttentionOnTheGpu.GivesFewSequences*"
                        ":LinearOnTheGpu.BothPaths*:LinearOnTheGpu.ADeviceWithout*:LinearOnTheGpu.AgreesWithDouble*:AddRmsNormOnTheGpu.ManyRows*"
                        ":NormRouterOnTheGpu.GivesTheBits*:SampleOnTheGpu.DrawsTheCpus*"
                        ":MoeOnTheGpu/*.ARowsBits*:MoeOnTheGpu/*.HasRoom*:MoeOnTheGpu/*.AgreesWithTheScalarForm",
           # Its ring in shared memory is that of LinearOnTheGpu.
           "gpu_ranks_races": "-PeerLinearOnGpus.*"}
