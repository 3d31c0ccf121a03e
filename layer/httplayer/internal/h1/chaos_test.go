package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/fdtest"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// pattern returns the body of a request, which its number determines.
func pattern(id, size int) []byte {
	return bytes.Repeat([]byte(strconv.Itoa(id)+","), size/2+1)[:size]
}

// chaosUpstream answers with the body of the request, or misbehaves as its fields
// ask for it.
func chaosUpstream(conn net.Conn, r *bufio.Reader) {
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		id, fault := req.Header.Get("X-Id"), req.Header.Get("X-Fault")
		switch fault {
		case "close":
			return
		case "early":
			fmt.Fprintf(conn, "HTTP/1.1 413 Large\r\nX-Id: %s\r\nContent-Length: 5\r\n\r\nearly", id)
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			continue
		case "early close":
			fmt.Fprintf(conn, "HTTP/1.1 413 Large\r\nX-Id: %s\r\nConnection: close\r\nContent-Length: 5\r\n\r\nearly", id)
			return
		case "cut headers":
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Id")
			return
		case "cut body":
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Id: %s\r\nContent-Length: 500\r\n\r\nabc", id)
			return
		case "stall":
			time.Sleep(30 * time.Millisecond)
		}
		if fault == "stream" { // full duplex
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Id: %s\r\nTransfer-Encoding: chunked\r\n\r\n", id)
			b := make([]byte, 3000)
			for {
				n, err := req.Body.Read(b)
				if n > 0 {
					fmt.Fprintf(conn, "%x\r\n%s\r\n", n, b[:n])
				}
				if err == io.EOF {
					break
				}
				if err != nil {
					return
				}
			}
			io.WriteString(conn, "0\r\nX-Trailer: "+id+"\r\n\r\n")
			continue
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		extra := ""
		if fault == "unsolicited" {
			extra = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
		}
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nX-Id: %s\r\nContent-Length: %d\r\n\r\n%s%s", id, len(body), body, extra)
	}
}

// chaosClient sends requests on one connection until a fault ends it. It returns
// how many were answered in full.
func chaosClient(t *testing.T, addr string, faults []string, rng *rand.Rand, ids *atomic.Int64) (whole int) {
	conn, err := net.Dial("tcp", addr)
	if !assert.NoError(t, err) {
		return 0
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	r := bufio.NewReader(conn)
	for range 1 + rng.IntN(8) {
		id := int(ids.Add(1))
		size := []int{0, 0, 10, 1000, 9000, 100_000, 300_000}[rng.IntN(7)]
		fault, body := faults[rng.IntN(len(faults))], pattern(id, size)
		var head strings.Builder
		fmt.Fprintf(&head, "POST /%d HTTP/1.1\r\nHost: a\r\nX-Id: %d\r\nX-Fault: %s\r\n", id, id, fault)
		chunked := rng.IntN(2) == 0
		if chunked {
			head.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		} else {
			fmt.Fprintf(&head, "Content-Length: %d\r\n\r\n", size)
		}
		abort := -1 // bytes after which the client leaves
		if rng.IntN(6) == 0 {
			abort = rng.IntN(head.Len() + size + 1)
		}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			message := append([]byte(head.String()), body...)
			if chunked {
				message = []byte(head.String())
				for rest := body; len(rest) > 0; rest = rest[min(7000, len(rest)):] {
					n := min(7000, len(rest))
					message = fmt.Appendf(message, "%x\r\n%s\r\n", n, rest[:n])
				}
				message = append(message, "0\r\n\r\n"...)
			}
			if abort >= 0 && abort < len(message) {
				conn.Write(message[:abort])
				conn.Close()
				return
			}
			conn.Write(message)
		}()
		rsp, err := http.ReadResponse(r, nil)
		if err != nil {
			conn.Close()
			<-sent
			return whole
		}
		if abort < 0 && rng.IntN(8) == 0 { // leave during the response
			conn.Close()
			<-sent
			return whole
		}
		got, err := io.ReadAll(rsp.Body)
		assert.Equal(t, strconv.Itoa(id), rsp.Header.Get("X-Id"), "the response of another request")
		switch {
		case err != nil:
			conn.Close()
			<-sent
			return whole
		case rsp.StatusCode == http.StatusOK:
			assert.True(t, bytes.Equal(body, got), "%d of %d bytes of %d, fault %q", len(got), size, id, fault)
			if fault == "stream" {
				assert.Equal(t, strconv.Itoa(id), rsp.Trailer.Get("X-Trailer"))
			}
			whole++
		default:
			assert.Equal(t, "early", string(got))
		}
		if rsp.Close {
			conn.Close()
		}
		<-sent
		if rsp.Close {
			return whole
		}
	}
	return whole
}

// TestChaos aborts on both sides at random. Each response belongs to its request,
// each connection is released once, and nothing is left behind.
func TestChaos(t *testing.T) {
	fdtest.Check(t)
	t.Cleanup(func() {
		assert.Eventually(t, func() bool { return message.BuffersInUse() == 0 }, patience, time.Millisecond, "buffers are in use")
	})
	duration := 500 * time.Millisecond
	if os.Getenv("GOTOWER_TESTS") == "full" {
		duration = time.Minute
	}
	p := newPool(t, script(t, chaosUpstream))
	var trips, whole, ids atomic.Int64
	exchange := func(req *http.Request) (*http.Response, error) {
		trips.Add(1)
		if rand.IntN(20) == 0 { // answer while another goroutine reads the body
			go io.Copy(io.Discard, req.Body)
			return &http.Response{
				StatusCode: http.StatusForbidden, Header: http.Header{"X-Id": req.Header["X-Id"]},
				ContentLength: 5, Body: io.NopCloser(strings.NewReader("early")),
			}, nil
		}
		if rand.IntN(20) == 0 {
			ctx, cancel := context.WithTimeout(req.Context(), time.Duration(rand.IntN(5))*time.Millisecond)
			rsp, err := p.RoundTrip(req.WithContext(ctx))
			if err != nil {
				cancel()
				return nil, err
			}
			context.AfterFunc(req.Context(), cancel)
			return rsp, nil
		}
		return p.RoundTrip(req)
	}
	faults := []string{"", "", "", "", "stream", "stream", "stall", "close", "early", "early close", "cut headers", "cut body"}
	first, err := p.get(t.Context())
	require.NoError(t, err)
	if first.sock.exists() { // else an unsolicited response may be noticed too late
		faults = append(faults, "unsolicited")
	}
	first.Close()
	s := serve(t, &message.ServerConfig{
		Exchange: exchange, HeaderTimeout: 5 * time.Second, BodyIdle: 5 * time.Second, WriteTimeout: 5 * time.Second,
	})
	end := time.Now().Add(duration)
	var wg sync.WaitGroup
	for g := range 16 {
		rng := rand.New(rand.NewPCG(uint64(g), uint64(end.UnixNano())))
		wg.Go(func() {
			for (time.Now().Before(end) || whole.Load() <= 20 && time.Since(end) < patience) && !t.Failed() {
				whole.Add(int64(chaosClient(t, s.addr, faults, rng, &ids)))
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return len(s.all()) == 0 }, patience, 10*time.Millisecond, "server connections are left")
	dials, released, _ := p.counts()
	t.Log(ids.Load(), "requests", whole.Load(), "answered", trips.Load(), "exchanges", dials, "dials", released, "released")
	assert.Equal(t, p.trips, released)
	assert.Greater(t, whole.Load(), int64(20))
	for _, err := range s.errors() {
		_, syntax := errors.AsType[*SyntaxError](err)
		assert.False(t, syntax, "%v", err)
	}
}
