package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// check verifies one property of the running cluster. The function run returns a text about
// the result, or an error.
type check struct {
	name string
	run  func(context.Context) (figure string, err error)
}

// encryptedMarker is in requests between pods with proxies. It must never be readable in
// the captured traffic. cleartextMarker is in the request of the pod without a proxy, which
// is sent in cleartext.
const (
	encryptedMarker = "m4rker-that-must-be-encrypted"
	cleartextMarker = "m4rker-that-is-sent-in-clear"
)

// checks returns all checks in order. The checks of the captured traffic come last, because
// they analyze the traffic that the other checks cause.
func (r *running) checks() []check {
	return []check{
		{"curl → nginx, HTTP/1.1", r.checkNginx},
		{"curl → nginx, 100 at once on few connections", r.checkShared},
		{"Go → Go, HTTP/1.1 with bodies", r.checkBodies},
		{"client id of the server's requests", r.checkClientID},
		{"grpc-go → grpc-go, all four shapes", r.checkGRPC},
		{"redis-cli → redis-server, bytes", r.checkRedis},
		{"curl → SMTP, where the server speaks first", r.checkMail},
		{"curl → the address of one pod", r.checkPodAddress},
		{"curl without a proxy → nginx, in cleartext", r.checkUnmeshed},
		{"curl without a proxy → Go, denied by policy", r.checkDeniedRequest},
		{"redis-cli without a proxy, closed by policy", r.checkDeniedConnection},
		{"metrics of the client's proxy", r.checkMetricsOut},
		{"metrics of the servers' proxies", r.checkMetricsIn},
		{"tap of the client's proxy", r.checkTapOut},
		{"tap of the servers' proxies", r.checkTapIn},
		{"tap for other clients", r.checkTapRejected},
		{"split 90/10, by a changed policy", r.checkSplit},
		{"failure accrual, by a changed policy", r.checkAccrual},
		{"SIGTERM under load, of one server's proxy", r.checkDrain},
		{"SIGTERM of all other proxies", r.checkEnd},
		{"the wire, between pods with proxies", r.checkWire},
		{"the wire, without a proxy", r.checkWireCleartext},
	}
}

// verify runs the checks and prints a line for each. It returns the number of failed
// checks. If ctx ends, it does not run the remaining checks.
func (r *running) verify(ctx context.Context, out io.Writer) (failed int) {
	checks := r.checks()
	width := 0
	for _, c := range checks {
		// The name contains characters of several bytes, so characters are counted.
		width = max(width, utf8.RuneCountInString(c.name))
	}
	fmt.Fprintf(out, "%-6s  %-*s  %s\n", "", width, "EXPECTED", "SEEN")
	for _, c := range checks {
		// An interrupt ends the program after the current check.
		if ctx.Err() != nil {
			break
		}
		limited, cancel := context.WithTimeout(ctx, stepTimeout)
		figure, err := c.run(limited)
		cancel()
		verdict := "ok"
		if err != nil {
			verdict = "FAILED"
			// The lines of an error are indented under the check.
			figure = strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n        ")
			failed++
		}
		fmt.Fprintf(out, "%-6s  %-*s  %s\n", verdict, width, c.name, figure)
	}
	return failed
}
