// Package messages is a differential test of HTTP/1.1. It generates valid and sloppy requests and
// responses, and sends them through nginx, haproxy and a proxy from package httplayer. The backend
// behind each records what it receives and sends scripted bytes. The test checks three rules:
//
//   - The proxy forwards whatever nginx and haproxy forward with the same meaning. The list
//     exceptions contains the cases in which it does not, and why.
//   - nginx, haproxy, net/http and h11 agree on the meaning of what the proxy forwards.
//   - The proxy immediately rejects what it does not forward.
//
// It also checks and writes the table in layer/httplayer/MESSAGES.md.
//
// Use .ci/messages.sh to install nginx, haproxy and h11. Without them, the test is skipped. By
// default, it sends 200 requests and 200 responses, and 2500 of each with GOTOWER_TESTS=full.
package messages
