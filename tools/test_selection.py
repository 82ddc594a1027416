"""What of the C++ tests each kind of run takes (tools/run_tests.py): names of programs, and filters of GoogleTest's."""

# Rooms that read what strangers wrote, or keep what many share: the selection of `make test-sanitized`. The extended run
# has the other rooms in a part of its own.
SANITIZED = ("cache", "checkpoint", "grammar", "sched", "server", "text")
# How much of what is drawn at random the extended run does; `make test` does as much as the sources say.
EXTENDED_COUNTS = {"SIMULATIONS": "100000"}
# Programs of tests that run on the emulation of a GPU: of the C++ tests they take longest. Their kernels are already
# compiled for what tests/ runs, so they run while the other programs are still built.
EMULATION = ("gpu_emulation", "gpu_emulation_worker", "gpu_ranks")
# Cases on the emulated GPU that take longest and ask for equal bits in more ways than others do, which walk through the
# same kernels. The extended run has them, and so has every record of a GPU, whose hash of the device code is checked.
EMULATED = {"gpu_emulation": "-AttentionOnTheGpu.GivesFewSequences*:AttentionOnTheGpu.ARowsBits*",
            "gpu_emulation_worker": "-*.NorDoTheyOn*:GpuEngine.WhatIsCancelled*:GpuWorkerOnTheGpu.ChangedLogits*:DeepseekV3OnTheGpu.ASequences*"
                                    ":Qwen3MoeOnTheGpu.ASequences*:GpuRanks.GptOss*:GpuRanks.Qwen3*:GpuRanks.Matrices*"
                                    ":RanksOfFamilies.Qwens*:RanksOfFamilies.Deep*:RanksOfFamilies.Matrices*:RanksOfFamilies.Rows*:RanksOfFamilies.GoOn*"
                                    ":MergedRanks.Qwens*:MergedRanks.Deep*:MergedRanks.Matrices*",
            "gpu_ranks": "-*.PairsOfBlocks*:*.StandsManyCalls*:NormCodesOnGpus.AreThose*:NormCodesOnGpus.StandMany*"}
# Whole models on the emulation walk through all kernels: `make test` has this program alone, and of it leaves what takes
# longest to `make test-sanitized`, models in every company.
EMULATED_MODELS = "gpu_emulation_worker"
LONG_MODELS = (":*.ASequencesBits*:*.BitsDependOnNothingElse*:*.GoesOnFromSnapshots*:GpuEngine.AStepBegun*:*.AllExpertsOnEachRank*"
               ":Fp8PromptsOnTheGpu.HaveTheSame*:Fp8PromptsOnTheGpu.AreNear*:Fp8PromptsOfRanks.*"
               ":GpuDrafts.LeaveTheBits*:GpuDraftsOfRanks.*:GpuEngineDrafts.LeaveTheBits*:GpuEngineDrafts.WhatIsCancelled*"
               ":GpuOwners.OfGptOss*:GpuOwners.OfQwen3*:GpuOwners.OfDeepseek*:GpuOwners.InGroups*:GpuOwners.AStep*"
               ":GpuDrafts.LeaveThem*:GpuDrafts.OfTwo*:GpuOwners.OfAPrompt*:GpuRanks.RowsOfAStep*:MergedRanks.GptOss*"
               ":GpuWorkerOnTheGpu.AStepBegun*:GpuWorkerOnTheGpu.RandomWeights*:GpuWorkerOnTheGpu.HeadsThat*:GpuWorkerOnTheGpu.CountsWhat*"
               ":GpuWorkerOnTheGpu.StepsUse*")
# Left out where every access to shared memory is watched, which takes 20 times as long.
WATCHED = {"gpu_races": "-AttentionOnTheGpu.GivesTheSameBitsEveryTime:AttentionOnTheGpu.ARowsBits*:AttentionOnTheGpu.GivesFewSequences*"
                        ":LinearOnTheGpu.BothPaths*:LinearOnTheGpu.ADeviceWithout*:LinearOnTheGpu.AgreesWithDouble*:AddRmsNormOnTheGpu.ManyRows*"
                        ":NormRouterOnTheGpu.GivesTheBits*:SampleOnTheGpu.DrawsTheCpus*"
                        ":MoeOnTheGpu/*.ARowsBits*:MoeOnTheGpu/*.HasRoom*:MoeOnTheGpu/*.AgreesWithTheScalarForm",
           # Its ring in shared memory is that of LinearOnTheGpu.
           "gpu_ranks_races": "-PeerLinearOnGpus.*"}
