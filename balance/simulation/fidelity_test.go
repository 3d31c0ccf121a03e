package simulation

// fidelity says how far the rules written here are from the peers' own code:
// both were put before one simulation, that of the seven scenarios which other
// balancers were measured with before, with nine seeds each. It is not
// generated: their code is no dependency of this module.
const fidelity = `
The difference to the original code, for kratos v2.8.3 and go-zero v1.10.3 (medians of nine seeds, 40 000 requests each):

| scenario | kratos: p99 | rule | good % | rule | go-zero: p99 | rule | good % | rule |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
| one slow | 16.9 | 16.9 | 99.76 | 99.74 | 16.6 | 16.5 | 99.84 | 99.85 |
| one fails (with the real latency of failures) | 16.0 | 16.0 | 99.97 | 99.97 | 16.0 | 16.0 | 99.19 | 99.19 |
| one stalls | 16.0 | 16.0 | 99.99 | 99.99 | 16.1 | 16.1 | 99.97 | 99.97 |
| unequal, 65 % | 73.9 | 74.2 | 99.61 | 99.63 | 72.2 | 72.9 | 99.65 | 99.63 |
| unequal, 85 % (single runs: 459 to 874 ms) | 708.8 | 694.2 | 50.79 | 49.71 | 668.3 | 686.0 | 49.45 | 48.63 |
| unequal, 50 clients | 80.0 | 80.7 | 99.53 | 99.53 | 94.1 | 90.8 | 99.16 | 99.25 |
| equal, busy | 34.5 | 34.5 | 99.99 | 99.99 | 33.1 | 33.1 | 99.99 | 99.99 |

The rules of tower, linkerd, Finagle and grpc-go were not compared with a run of their code.
`
