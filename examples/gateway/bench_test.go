package main

import (
	"bytes"
	"net"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/conntest"
)

// BenchmarkRequest is a request through a gateway with a JSON access log, metrics of statuses, an idle
// tap, a retry and a header edit. The client and the service allocate nothing, so that the result has
// only the allocations of the gateway.
func BenchmarkRequest(b *testing.B) { benchRequest(b) }

// TestRequestAllocations keeps the number of allocations of BenchmarkRequest.
func TestRequestAllocations(t *testing.T) {
	if raceEnabled() {
		t.Skip("the race detector allocates")
	}
	var allocations int64
	for range 3 { // other goroutines of the process allocate, too
		if allocations = testing.Benchmark(benchRequest).AllocsPerOp(); allocations <= maxAllocations {
			return
		}
	}
	require.LessOrEqual(t, allocations, int64(maxAllocations))
}

const maxAllocations = 21 // 20, and one for other goroutines

// raceEnabled reports whether the race detector is on.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func benchRequest(b *testing.B) {
	b.Helper()
	up := conntest.Serve(b, func(_ int, conn net.Conn) {
		answerAll(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello")
	})
	p := start(b, `
listeners: [{name: http, address: "127.0.0.1:0"}]
admin: {address: "127.0.0.1:0"}
accessLog: {format: json, path: /dev/null}
services: [{name: a, static: {addresses: ["`+up+`"]}}]
routes: [{name: all, backendRefs: [{name: a}], retry: {attempts: 1}, requestHeaderModifier: {set: [{name: X-Edited, value: a}]}}]
`)
	conn, err := net.Dial("tcp", p.addresses["http"])
	require.NoError(b, err)
	defer conn.Close()
	request := []byte("GET /a?b=c HTTP/1.1\r\nHost: web.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
	in := make([]byte, 4096)
	ask := func() {
		_, err := conn.Write(request)
		if err != nil {
			b.Fatal(err)
		}
		for n := 0; !bytes.HasSuffix(in[:n], []byte("hello")); {
			more, err := conn.Read(in[n:])
			if err != nil {
				b.Fatal(err)
			}
			n += more
		}
	}
	ask()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		ask()
	}
	b.StopTimer()
}

// answerAll sends answer for each request without a body.
func answerAll(conn net.Conn, answer string) {
	b, in := []byte(answer), make([]byte, 4096)
	for n := 0; ; {
		more, err := conn.Read(in[n:])
		if err != nil {
			return
		}
		if n += more; bytes.HasSuffix(in[:n], []byte("\r\n\r\n")) {
			if _, err := conn.Write(b); err != nil {
				return
			}
			n = 0
		}
	}
}
