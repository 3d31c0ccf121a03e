package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// atOnce is how many requests are open on all connections together, and streamsOfConn how many on
// one gRPC connection. An HTTP/1.1 connection only has one.
const (
	atOnce        = 64
	streamsOfConn = 4
)

// Parts of requests: the authority in name, the header fields of an HTTP/1.1 request in fields, and
// the header block of a gRPC call in requestHeaders, which is encoded by hand like responseHeaders.
const (
	name           = "bench.default.svc.cluster.local"
	routesProtocol = "%d routes" // HTTP/1.1 through a gateway with this number of routes
	fields         = " HTTP/1.1\r\nHost: " + name + "\r\nUser-Agent: bench\r\nAccept: */*"
	requestSize    = 128
	downloadSize   = 256          // size of a gRPC request that gets a large response
	requestHeaders = "\x83\x86" + // :method POST, :scheme http
		"\x00\x05:path\x12/bench.Bench/Unary" + "\x00\x0a:authority\x1f" + name +
		"\x00\x0ccontent-type\x10application/grpc" + "\x00\x02te\x08trailers"
)

// load generates load for one proxy. In a closed loop, each response triggers the next request. In
// an open loop, requests are sent at a given rate.
type load struct {
	clients []*client
	streams int // concurrent requests on one connection

	// These fields only change while no request is open.
	begin, end time.Time
	free       chan *client // a connection for each request that can be sent now; nil in a closed loop
	open       sync.WaitGroup
}

// client is one of the load generator's connections, with its open requests.
type client struct {
	wire

	load    *load
	grpc    bool
	request string // an HTTP/1.1 request, or the message in a gRPC request
	size    int    // the response body's size
	hasHead bool   // the HTTP/1.1 response's headers have been read

	mu        sync.Mutex // guards the fields below, and wire.out
	stream    uint32     // number of the next stream minus 1
	calls     map[uint32]call
	latencies []time.Duration
}

// call is one of a client's open requests.
type call struct {
	due  time.Time
	body int // bytes of the response body so far
}

// generate is the [role] of the load generator. args are the protocol and the proxy's address. The
// parent's commands make it send requests. It returns the first connection's error.
func generate(ctx context.Context, args []string, ready func(string, command)) error {
	// HTTP/1.1 has one request at a time on a connection.
	l := &load{streams: 1}
	protocol := args[0]
	size := responseSize
	request := "GET " + smallPath + fields + headEnd
	// Every other protocol has its own request. In downloads, the responses are large too.
	switch protocol {
	case grpcProtocol:
		request = message(requestSize)
	case grpcDownloadProtocol:
		request = message(downloadSize)
		size = largeSize
	case grpcUploadProtocol:
		request = message(largeSize)
	case downloadProtocol:
		request = "GET " + largePath + fields + headEnd
		size = largeSize
	case uploadProtocol:
		request = "POST " + smallPath + fields + contentLength + strconv.Itoa(largeSize) + headEnd + strings.Repeat("x", largeSize)
	}
	if isGRPC(protocol) {
		l.streams = streamsOfConn
	}
	var routes int
	// The protocol is not about routes in most cases, so an error means 0.
	_, _ = fmt.Sscanf(protocol, routesProtocol, &routes)
	// The channel has room for the error of each connection, so that none blocks.
	failed := make(chan error, atOnce)
	// The number of open requests is the same for all protocols.
	for i := range atOnce / l.streams {
		if routes > 0 { // each connection uses a different route
			request = "GET " + routePath(i*routes/atOnce) + smallPath + fields + headEnd
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", args[1])
		if err != nil {
			return err
		}
		c := &client{wire: newWire(conn), load: l, grpc: isGRPC(protocol), request: request, size: size}
		c.calls = make(map[uint32]call)
		if c.grpc {
			// The preface and SETTINGS come first. They are sent with the first request.
			c.out = append(c.out, preface+settingsFrame...)
		}
		l.clients = append(l.clients, c)
		go func() { failed <- c.receive() }()
	}
	// The load begins with the parent's first command.
	ready("", l.run)
	return <-failed
}

// summary is the result of one run: the number of requests, the duration in seconds, and the
// latencies' 99th percentile.
type summary struct {
	Requests int
	Seconds  float64
	P99      time.Duration
}

// run sends requests for some time, waits for the responses, and returns a summary. line contains
// the rate in requests per second, which is 0 for a closed loop, and the duration in seconds.
func (l *load) run(line string) (any, error) {
	var rate, seconds float64
	if _, err := fmt.Sscan(line, &rate, &seconds); err != nil {
		return nil, err
	}
	l.begin = time.Now()
	l.end = l.begin.Add(time.Duration(seconds * float64(time.Second)))
	loop := l.closedLoop
	if rate > 0 {
		loop = l.openLoop
	}
	if err := loop(rate); err != nil {
		return nil, err
	}
	// The responses to the last requests may come after the end.
	l.open.Wait()
	s := summary{Seconds: time.Since(l.begin).Seconds()}
	var latencies []time.Duration
	for _, c := range l.clients {
		latencies = append(latencies, c.latencies...)
		// The next run fills the array again.
		c.latencies = c.latencies[:0]
	}
	if s.Requests = len(latencies); s.Requests == 0 {
		return nil, errors.New("no request was due")
	}
	slices.Sort(latencies)
	s.P99 = latencies[len(latencies)*99/100]
	return s, nil
}

// closedLoop sends a closed loop's first requests. [client.process] sends the others.
func (l *load) closedLoop(float64) error {
	l.free = nil
	for _, c := range l.clients {
		// run waits for these. process replaces each request by the next one until the run ends.
		l.open.Add(l.streams)
		if err := c.send(l.streams, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// openLoop sends requests at the random times of a Poisson process with the given rate. If no
// connection is free, a request waits, and the wait is part of its latency.
func (l *load) openLoop(rate float64) error {
	// A gRPC connection is in the channel once for each of its streams.
	l.free = make(chan *client, atOnce)
	for range l.streams {
		for _, c := range l.clients {
			l.free <- c
		}
	}
	alarm, err := newAlarm()
	if err != nil {
		return err
	}
	defer alarm.close()
	// The times between the events of a Poisson process have an exponential distribution.
	for due := l.begin; due.Before(l.end); due = due.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second))) {
		if err := alarm.sleep(time.Until(due)); err != nil {
			return err
		}
		// The wait for a connection counts, because the latency begins at due.
		c := <-l.free
		l.open.Add(1)
		if err := c.send(1, due); err != nil {
			return err
		}
	}
	return nil
}

// send writes n requests. Their latency begins at due, which may be in the past.
func (c *client) send(n int, due time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.add(due)
	}
	return c.flush()
}

// add appends a request to the output, without writing it. The caller must hold mu.
func (c *client) add(due time.Time) {
	if !c.grpc {
		// HTTP/1.1 has one request at a time, which counts as stream 0.
		c.calls[0] = call{due: due}
		c.out = append(c.out, c.request...)
		return
	}
	// The streams of a client have odd numbers.
	stream := c.stream + 1
	c.stream += 2
	c.calls[stream] = call{due: due}
	c.frame(frameHeaders, flagEndHeaders, stream, requestHeaders)
	c.bodies = append(c.bodies, body{stream, c.start, c.request, ""})
	// The message follows as far as flow control permits.
	c.pump()
}

// receive processes responses until the connection fails or a response is invalid.
func (c *client) receive() error {
	for {
		if err := c.read(); err != nil {
			return err
		}
		if err := c.process(); err != nil {
			return err
		}
	}
}

// process finishes each request whose response is complete. In a closed loop, it also sends the
// next one, until the run ends.
func (c *client) process() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	responses := c.http1Response
	if c.grpc {
		responses = c.grpcResponses
	}
	err := responses()
	// The frames may have opened the flow control windows.
	c.pump()
	// Requests that finish added are written together, even after an error.
	return errors.Join(err, c.flush())
}

// http1Response processes the bytes of an HTTP/1.1 response that have arrived.
func (c *client) http1Response() error {
	// The headers come first. They may arrive in parts.
	if !c.hasHead {
		head, rest, ok := bytes.Cut(c.in, []byte(headEnd))
		switch {
		case !ok:
			return nil
		case !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")):
			return fmt.Errorf("the response is %q, want status 200", head)
		}
		c.in = rest
		// The body is only counted, not stored.
		c.skip = c.size
		c.hasHead = true
	}
	if !c.skipped() {
		return nil
	}
	// There is only one open request, so nothing may follow its response.
	if len(c.in) > 0 {
		return fmt.Errorf("the response has %d bytes, want %d", c.size+len(c.in), c.size)
	}
	c.hasHead = false
	c.finish(0)
	return nil
}

// grpcResponses processes the frames of gRPC responses that have arrived.
func (c *client) grpcResponses() error {
	for f, ok := c.next(); ok; f, ok = c.next() {
		// A call that has ended is no longer in the map.
		open, isOpen := c.calls[f.stream]
		ends := f.flags&flagEndStream != 0
		// The order matters: only an open stream has a call to compare with.
		switch {
		case f.kind == frameGoAway || f.kind == frameReset && isOpen:
			return fmt.Errorf("the proxy sent a frame of type %d with %q", f.kind, f.payload)
		case !isOpen: // a reset without an error may follow a response
		case ends && (f.kind != frameHeaders || open.body != messagePrefix+c.size):
			return fmt.Errorf("a stream ended by a frame of type %d after %d bytes, want trailers after %d",
				f.kind, open.body, messagePrefix+c.size)
		case ends:
			c.finish(f.stream)
		case f.kind == frameData:
			open.body += len(f.payload)
			c.calls[f.stream] = open
		}
	}
	return nil
}

// finish records the latency of the request on stream, which is 0 for HTTP/1.1. In an open loop, the
// connection can then serve another request. In a closed loop, finish adds the next request, unless the
// run has ended. The caller must hold mu.
func (c *client) finish(stream uint32) {
	now := time.Now()
	c.latencies = append(c.latencies, now.Sub(c.calls[stream].due))
	delete(c.calls, stream)
	switch {
	case c.load.free != nil: // an open loop
		c.load.free <- c
	case now.Before(c.load.end):
		c.add(now)
		return // the number of open requests stays the same
	}
	c.load.open.Done()
}
