// Package exchangetest tests an HTTP engine with random exchanges over connections in memory.
//
// The engine serves both ends of each connection. The steps in an exchange are parts and ends of
// both bodies, early responses, early closes, cancelations, resets, drains and lost connections. The
// model checks these rules:
//
//   - Each body that an engine gets is closed once, and no Read begins after that. RoundTrip has
//     closed the request body when it has failed, and when the response body is closed.
//   - A body that is read to io.EOF contains all bytes that were sent.
//   - An exchange without a fault succeeds, whatever happens to other exchanges.
//   - A connection stays usable, unless it was drained or lost. In HTTP/1.1 it also ends after an
//     exchange that was not complete.
//   - A later exchange transfers bodies that are larger than all windows.
//   - Pooled buffers are returned once.
package exchangetest

import (
	"errors"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Engine is the implementation of HTTP/1.1 or HTTP/2, client and server, that is tested, and what
// it is expected to do.
type Engine struct {
	// Connect returns a new connection. Its server calls exchange for each request.
	Connect func(exchange func(*http.Request) (*http.Response, error)) Conn

	// Serial is true if a connection serves one exchange at a time, and ends after an
	// exchange that was not complete.
	Serial bool

	// Pause is the longest time for which a Read of a response waits for the request.
	Pause time.Duration

	NotSent error        // matched by RoundTrip's error if the request was not used
	Pools   []*sync.Pool // pools of the engine

	// Reset returns an error for a server or a body that resets the stream with code. Cancel returns
	// a cause for a request context that does the same. Code returns an error's code, or 0.
	Reset, Cancel func(code uint32) error
	Code          func(err error) uint32
}

// Conn is a client connection and the server connection at its other end.
type Conn interface {
	// Acquire permits one call of RoundTrip. It returns false if too many exchanges are in
	// progress, or if the connection is gone.
	Acquire() bool
	RoundTrip(req *http.Request) (*http.Response, error)

	Ended() bool       // reports whether Acquire will always return false
	Drain(server bool) // makes one side end the connection after the exchanges in progress
	Break(server bool) // closes the network connection of one side
	Close()            // closes both ends and waits for their goroutines

	// Resets returns how many streams either side has reset.
	Resets() int

	// Open returns what is still in use although all exchanges have ended, or "". The connection has not
	// ended.
	Open() string
}

// Run tests the engine. It must not run in parallel with other tests, because it counts buffers.
func Run(t *testing.T, engine *Engine) {
	t.Helper()
	exact := exactPools()
	// Without garbage collection and on one CPU, a pool gives back all that it got, so that each missing buffer is a
	// leak. The outer calls restore the settings at the end.
	if exact {
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	pools := watch(engine.Pools)
	defer pools.restore()
	rounds := 1 // out of 100 runs
	if exact {
		rounds = 5
	}
	for range rounds {
		check(t, engine, pools, exact)
	}
}

// check runs random sequences of steps on the engine. A failed sequence is shortened and reported. exact
// is true if every buffer must be back in its pool after each sequence.
func check(t *testing.T, engine *Engine, pools *pools, exact bool) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 40).Draw(rt, "steps")
		// The collector is off, so it runs once for each sequence of steps.
		runtime.GC()
		var failure string
		synctest.Test(t, func(*testing.T) { failure = (&model{engine: engine}).run(steps) })
		if buffers := pools.violation(exact); failure == "" {
			failure = buffers
		}
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// exactPools reports whether a pool returns all values that it got. It does not under the race
// detector.
func exactPools() bool {
	// A pool has one list for each CPU, so that on one CPU nothing is left in another list.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var pool sync.Pool
	const n = 64
	for i := range n {
		pool.Put(&i)
	}
	for range n {
		if pool.Get() == nil {
			return false
		}
	}
	return true
}

var errBody = errors.New("the body fails")

// kind is an event in an exchange or on its connection.
type kind int

const (
	start        kind = iota
	sendPart          // the request body gets more bytes
	sendEnd           // the request body ends
	sendFailure       // the request body fails
	serverReads       // the server reads a part of the request body
	serverCloses      // the server closes the request body
	respond           // the response begins, perhaps early
	refuse            // the server returns an error
	respondPart       // the response body gets more bytes
	respondEnd        // the response body ends
	respondReset      // the response body fails
	clientReads       // the client reads a part of the response body
	clientCloses      // the client closes the response body
	cancel            // the context of the request ends
	drain             // one side drains the connection
	lose              // the network connection is lost
	pause             // time passes
)

// step is one random event. It uses only the fields that its Kind needs.
type step struct {
	Kind         kind   // kind of event
	Which        int    // exchange, counted from the last one
	Size         int    // bytes of a part
	Up, Down     int    // sizes of a new exchange's bodies
	Known        bool   // the length of the body is announced
	Pending      bool   // the body reports the bytes that can be read without waiting
	Expects      bool   // the request carries Expect: 100-continue
	Code         uint32 // code of a reset or a cancellation
	ServerActs   bool   // the server drains or closes the connection, and not the client
	Milliseconds int
}

// drawStep draws a step for rapid, which can shorten a sequence that fails.
func drawStep(rt *rapid.T) step {
	sizes := rapid.SampledFrom([]int{0, 1, 3000, 20_000, 70_000, 200_000})
	flag := rapid.Bool()
	// A kind that is listed several times is drawn more often.
	s := step{Kind: rapid.SampledFrom([]kind{
		start, start, start, sendPart, sendPart, sendEnd, sendEnd, sendFailure,
		serverReads, serverReads, serverReads, serverCloses, respond, respond, respond, refuse,
		respondPart, respondPart, respondEnd, respondEnd, respondReset, clientReads, clientReads, clientReads,
		clientCloses, cancel, drain, lose, pause,
	}).Draw(rt, "kind"), Which: rapid.IntRange(0, 3).Draw(rt, "which")}
	switch s.Kind {
	case start:
		s.Up = sizes.Draw(rt, "up")
		s.Down = sizes.Draw(rt, "down")
		s.Known = flag.Draw(rt, "known")
		s.Pending = flag.Draw(rt, "pending")
		s.Expects = rapid.IntRange(0, 5).Draw(rt, "expects") == 0
	case sendPart, serverReads, respondPart, clientReads:
		s.Size = sizes.Filter(func(n int) bool { return n > 0 }).Draw(rt, "size")
	case refuse, respondReset, cancel:
		// INTERNAL_ERROR, REFUSED_STREAM, CANCEL and ENHANCE_YOUR_CALM.
		s.Code = rapid.SampledFrom([]uint32{2, 7, 8, 11}).Draw(rt, "code")
	case drain, lose:
		s.ServerActs = flag.Draw(rt, "server")
	case pause:
		s.Milliseconds = rapid.SampledFrom([]int{1, 60, 300, 2000}).Draw(rt, "ms")
	default:
	}
	return s
}
