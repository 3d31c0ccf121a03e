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

// atOnce is the number of open requests on all connections together. streamsOfConn is the number
// of open requests on one gRPC connection. An HTTP/1.1 connection has one.
const (
	atOnce        = 64
	streamsOfConn = 4
)

// The parts of requests: the authority in the constant name, the header fields of an HTTP/1.1
// request in fields, and the header block of a gRPC call in requestHeaders. This block is encoded
// by hand like responseHeaders.
const (
	name           = "bench.default.svc.cluster.local"
	routesProtocol = "%d routes" // HTTP/1.1 by a gateway with this number of routes
	fields         = " HTTP/1.1\r\nHost: " + name + "\r\nUser-Agent: bench\r\nAccept: */*"
	requestSize    = 128
	downloadSize   = 256          // size of a gRPC request that has a large response
	requestHeaders = "\x83\x86" + // :method POST, :scheme http
		"\x00\x05:path\x12/bench.Bench/Unary" + "\x00\x0a:authority\x1f" + name +
		"\x00\x0ccontent-type\x10application/grpc" + "\x00\x02te\x08trailers"
)

// load is the load generator for one proxy. In a closed loop, each response causes the next
// request. In an open loop, requests are sent at a given rate.
type load struct {
	clients []*client
	streams int // concurrent requests of one connection

	// The following fields change only while no request is open.
	begin, end time.Time
	free       chan *client // a connection for each request that can be sent now; nil in a closed loop
	open       sync.WaitGroup
}

// client is one connection of the load generator, with its open requests.
type client struct {
	wire

	load    *load
	grpc    bool
	request string // text of each HTTP/1.1 request, or message of each gRPC request
	size    int    // size of the response body
	began   bool   // the headers of the HTTP/1.1 response were read

	mu     sync.Mutex // guards the fields below, and the field out of wire
	stream uint32     // number of the next stream minus 1
	calls  map[uint32]call
	took   []time.Duration
}

// call is one open request of a client.
type call struct {
	due  time.Time
	body int // bytes of the response body so far
}

// generate is the [role] of a child process that sends load to a proxy. args are the protocol
// and the address of the proxy. It connects to the proxy, and sends requests when the parent
// process writes a command. generate returns the error of the first connection that fails.
func generate(ctx context.Context, args []string, ready func(string, command)) error {
	l, protocol, size := &load{streams: 1}, args[0], responseSize
	request := "GET " + smallPath + fields + headEnd
	switch protocol {
	case grpcProtocol:
		request = message(requestSize)
	case grpcDownloadProtocol:
		request, size = message(downloadSize), largeSize
	case grpcUploadProtocol:
		request = message(largeSize)
	case downloadProtocol:
		request, size = "GET "+largePath+fields+headEnd, largeSize
	case uploadProtocol:
		request = "POST " + smallPath + fields + contentLength + strconv.Itoa(largeSize) + headEnd + strings.Repeat("x", largeSize)
	}
	if isGRPC(protocol) {
		l.streams = streamsOfConn
	}
	var routes int
	_, _ = fmt.Sscanf(protocol, routesProtocol, &routes)
	failed := make(chan error, atOnce)
	for i := range atOnce / l.streams {
		if routes > 0 { // each connection uses another route
			request = "GET " + routePath(i*routes/atOnce) + smallPath + fields + headEnd
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", args[1])
		if err != nil {
			return err
		}
		c := &client{wire: newWire(conn), load: l, grpc: isGRPC(protocol), request: request, size: size}
		c.calls = make(map[uint32]call)
		if c.grpc {
			c.out = append(c.out, preface+settingsFrame...)
		}
		l.clients = append(l.clients, c)
		go func() { failed <- c.receive() }()
	}
	ready("", l.run)
	return <-failed
}

// summary has the results of one run of the load generator: the number of requests, the
// duration in seconds, and the 99th percentile of the latency.
type summary struct {
	Requests int
	Seconds  float64
	P99      time.Duration
}

// run sends requests for a given time, waits for their responses, and returns a summary.
// line has two numbers. The first is the rate in requests per second, or 0 for a closed
// loop. The second is the duration in seconds.
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
	l.open.Wait()
	s := summary{Seconds: time.Since(l.begin).Seconds()}
	var took []time.Duration
	for _, c := range l.clients {
		took = append(took, c.took...)
		c.took = c.took[:0]
	}
	if s.Requests = len(took); s.Requests == 0 {
		return nil, errors.New("no request was due")
	}
	slices.Sort(took)
	s.P99 = took[len(took)*99/100]
	return s, nil
}

// closedLoop sends the first requests of a closed loop, in which each response causes the
// next request. [client.process] sends the later requests.
func (l *load) closedLoop(float64) error {
	l.free = nil
	for _, c := range l.clients {
		l.open.Add(l.streams)
		if err := c.send(l.streams, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// openLoop sends requests at the random times of a Poisson process with the given rate. A
// request waits if no connection is free. Its latency includes this wait.
func (l *load) openLoop(rate float64) error {
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
	for due := l.begin; due.Before(l.end); due = due.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second))) {
		if err := alarm.sleep(time.Until(due)); err != nil {
			return err
		}
		c := <-l.free
		l.open.Add(1)
		if err := c.send(1, due); err != nil {
			return err
		}
	}
	return nil
}

// send writes n requests to the connection. The measured latency of each begins at the time due,
// which may be in the past.
func (c *client) send(n int, due time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.add(due)
	}
	return c.flush()
}

// add appends one request to the unwritten output of the connection. It does not write to the
// connection. The caller holds mu.
func (c *client) add(due time.Time) {
	if !c.grpc {
		c.calls[0] = call{due: due}
		c.out = append(c.out, c.request...)
		return
	}
	stream := c.stream + 1
	c.stream += 2
	c.calls[stream] = call{due: due}
	c.frame(frameHeaders, flagEndHeaders, stream, requestHeaders)
	c.bodies = append(c.bodies, body{stream, c.start, c.request, ""})
	c.pump()
}

// receive reads and processes responses until the connection fails or a response is
// invalid.
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

// process finishes each request with a complete response. In a closed loop, it also sends a
// new request for each finished one, until the end of the run.
func (c *client) process() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	responses := c.http1Response
	if c.grpc {
		responses = c.grpcResponses
	}
	err := responses()
	c.pump()
	return errors.Join(err, c.flush())
}

func (c *client) http1Response() error {
	if !c.began {
		head, rest, ok := bytes.Cut(c.in, []byte(headEnd))
		switch {
		case !ok:
			return nil
		case !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")):
			return fmt.Errorf("the response is %q, want status 200", head)
		}
		c.in, c.skip, c.began = rest, c.size, true
	}
	if !c.skipped() {
		return nil
	}
	if len(c.in) > 0 {
		return fmt.Errorf("the response has %d bytes, want %d", c.size+len(c.in), c.size)
	}
	c.began = false
	c.finish(0)
	return nil
}

func (c *client) grpcResponses() error {
	for f, ok := c.next(); ok; f, ok = c.next() {
		open, known := c.calls[f.stream]
		ends := f.flags&flagEndStream != 0
		switch {
		case f.kind == frameGoAway || f.kind == frameReset && known:
			return fmt.Errorf("the proxy sent a frame of type %d with %q", f.kind, f.payload)
		case !known: // a reset without an error may follow a response
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

// finish records the latency of the request on the given HTTP/2 stream. For HTTP/1.1, stream is
// 0. In a closed loop, finish then adds the next request, unless the run has ended. The caller
// holds mu.
func (c *client) finish(stream uint32) {
	now := time.Now()
	c.took = append(c.took, now.Sub(c.calls[stream].due))
	delete(c.calls, stream)
	switch {
	case c.load.free != nil:
		c.load.free <- c
	case now.Before(c.load.end):
		c.add(now)
		return
	}
	c.load.open.Done()
}
