package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"
)

// The load is 64 requests at once, for gRPC in 16 connections of 4 streams.
const (
	atOnce        = 64
	streamsOfConn = 4
)

// name is the authority of each request, which the sidecar resolves.
const (
	name           = "bench.default.svc.cluster.local"
	request        = "GET /bench HTTP/1.1\r\nHost: " + name + "\r\nUser-Agent: bench\r\nAccept: */*" + headEnd
	requestSize    = 128
	requestHeaders = "\x83\x86" + // :method POST, :scheme http
		"\x00\x05:path\x12/bench.Bench/Unary" + "\x00\x0a:authority\x1f" + name +
		"\x00\x0ccontent-type\x10application/grpc" + "\x00\x02te\x08trailers"
)

// load is the load generator of one proxy.
type load struct {
	clients []*client
	streams int // concurrent requests of one connection

	// The fields below are set while no request is open.
	end  time.Time
	free chan *client // has a connection once for each request that it can accept; nil in a closed loop
	open sync.WaitGroup
}

// client is one connection of the load generator.
type client struct {
	wire

	load    *load
	grpc    bool
	message string // of each gRPC request

	mu     sync.Mutex // of the fields below, and of out
	stream uint32     // last used stream
	calls  map[uint32]call
	took   []time.Duration
}

// call is an open request.
type call struct {
	due  time.Time
	body int // bytes of the response body so far
}

// generate is the role of the load generator. The first error of a connection ends it.
func generate(ctx context.Context, args []string, ready func(string, command)) error {
	l, grpc := &load{streams: 1}, args[0] == grpcProtocol
	if grpc {
		l.streams = streamsOfConn
	}
	failed := make(chan error, atOnce)
	for range atOnce / l.streams {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", args[1])
		if err != nil {
			return err
		}
		c := &client{wire: newWire(conn), load: l, grpc: grpc, message: message(requestSize), calls: make(map[uint32]call)}
		if grpc {
			c.out = append(c.out, preface+settingsFrame...)
		}
		l.clients = append(l.clients, c)
		go func() { failed <- c.receive() }()
	}
	ready("", l.run)
	return <-failed
}

// summary is the result of a run.
type summary struct {
	Requests int
	Seconds  float64
	P99      time.Duration
}

// run sends requests for a time and waits for their responses. line has the rate in
// requests per second, or 0 for a closed loop, and the duration in seconds.
func (l *load) run(line string) (any, error) {
	var rate, seconds float64
	if _, err := fmt.Sscan(line, &rate, &seconds); err != nil {
		return nil, err
	}
	begin := time.Now()
	l.end = begin.Add(time.Duration(seconds * float64(time.Second)))
	loop := l.closedLoop
	if rate > 0 {
		loop = l.openLoop
	}
	if err := loop(rate); err != nil {
		return nil, err
	}
	l.open.Wait()
	s := summary{Seconds: time.Since(begin).Seconds()}
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

// closedLoop sends the first requests. Each response is followed by the next request.
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

// openLoop sends requests at the times of a Poisson process. A request waits if no
// connection is free. Its latency is measured from its time in the process.
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
	for due := time.Now(); due.Before(l.end); due = due.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second))) {
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

// send writes n requests.
func (c *client) send(n int, due time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.add(due)
	}
	return c.flush()
}

// add adds a request to out. It does not check the flow-control window, because all
// open requests together fit into it.
func (c *client) add(due time.Time) {
	if !c.grpc {
		c.calls[0] = call{due: due}
		c.out = append(c.out, request...)
		return
	}
	stream := c.stream + 1
	c.stream += 2
	c.calls[stream] = call{due: due}
	c.frame(frameHeaders, flagEndHeaders, stream, requestHeaders)
	c.frame(frameData, flagEndStream, stream, c.message)
}

// receive reads responses until the connection or a response fails.
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

// process finishes the requests whose responses are complete.
func (c *client) process() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	responses := c.http1Response
	if c.grpc {
		responses = c.grpcResponses
	}
	return errors.Join(responses(), c.flush())
}

func (c *client) http1Response() error {
	head, body, ok := bytes.Cut(c.in, []byte(headEnd))
	switch {
	case !ok:
	case !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) || len(body) > responseSize:
		return fmt.Errorf("the response is %q with %d bytes, want status 200 with %d", head, len(body), responseSize)
	case len(body) == responseSize:
		c.in = nil
		c.finish(0)
	}
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
		case ends && (f.kind != frameHeaders || open.body != messagePrefix+responseSize):
			return fmt.Errorf("a stream ended by a frame of type %d after %d bytes, want trailers after %d",
				f.kind, open.body, messagePrefix+responseSize)
		case ends:
			c.finish(f.stream)
		case f.kind == frameData:
			open.body += len(f.payload)
			c.calls[f.stream] = open
		}
	}
	return nil
}

// finish ends a request and, in a closed loop, adds the next one.
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
