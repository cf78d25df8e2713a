"""Maximum flow and minimum cut (Dinic), iterative, over integers.

E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970:
breadth-first levels from the source, then augmenting paths along increasing levels only, each edge abandoned once per
phase.
"""

from __future__ import annotations

INFINITE = 1 << 100  # more than any sum of capacities


class Network:
    """A directed graph with capacities. Nodes are numbers from 0; edge `e` and its reverse `e ^ 1` are neighbours."""

    def __init__(self, n_nodes: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(n_nodes)]
        self.head: list[int] = []
        self.capacity: list[int] = []

    def add(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge; parallel edges add up."""
        edge = len(self.head)
        self.edges[tail].append(edge)
        self.edges[head].append(edge + 1)
        self.head += (head, tail)
        self.capacity += (capacity, 0)

    def maximize(self, source: int, sink: int) -> int:
        """Send the maximum flow and return it. `capacity` is the residual capacity afterwards."""
        total = 0
        while (level := self._levels(source, sink)) is not None:
            total += self._block(source, sink, level)
        return total

    def reachable(self, source: int) -> list[bool]:
        """The nodes on the source's side of a minimum cut (the smallest such side), after `maximize`."""
        seen = [False] * len(self.edges)
        seen[source] = True
        stack = [source]
        while stack:
            for edge in self.edges[stack.pop()]:
                head = self.head[edge]
                if not seen[head] and self.capacity[edge]:
                    seen[head] = True
                    stack.append(head)
        return seen

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """Distances from the source along edges with residual capacity, or None if the sink is unreachable."""
        level = [-1] * len(self.edges)
        level[source] = 0
        queue = [source]
        head, capacity = self.head, self.capacity
        for node in queue:
            for edge in self.edges[node]:
                if capacity[edge] and level[head[edge]] < 0:
                    level[head[edge]] = level[node] + 1
                    queue.append(head[edge])
            if level[sink] >= 0:
                return level
        return None

    def _block(self, source: int, sink: int, level: list[int]) -> int:
        """A blocking flow: saturates an edge of every path along which the level increases by one at each step."""
        edges, head, capacity = self.edges, self.head, self.capacity
        tried = [0] * len(edges)  # the number of exhausted edges of each node in this phase
        path: list[int] = []
        node, total = source, 0
        while True:
            if node == sink:
                flow = min(capacity[e] for e in path)
                total += flow
                full = len(path)
                for i in reversed(range(len(path))):
                    capacity[path[i]] -= flow
                    capacity[path[i] ^ 1] += flow
                    if not capacity[path[i]]:
                        full = i
                node = head[path[full] ^ 1]
                del path[full:]
            out = edges[node]
            while tried[node] < len(out):
                edge = out[tried[node]]
                if capacity[edge] and level[head[edge]] == level[node] + 1:
                    path.append(edge)
                    node = head[edge]
                    break
                tried[node] += 1
            else:
                if node == source:
                    return total
                node = head[path.pop() ^ 1]
                tried[node] += 1
