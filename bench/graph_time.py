"""The time of PyTorch calls by replays of a CUDA graph, as nibble's own benchmarks take theirs."""
import statistics


def graph_time(torch, stream, calls, replays, call):
    """Microseconds a call, the median over replays of a graph of call(0), call(1), ..; `stream` is the current one."""
    warm_up = 3
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(calls):
            call(index)
    times = []
    for _ in range(warm_up + replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        graph.replay()
        end.record(stream)
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times[warm_up:])
