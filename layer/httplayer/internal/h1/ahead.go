package h1

import (
	"io"
	"time"
)

// States of reading ahead, which means reading bytes of the next request while the handler of the
// current one runs. Its main purpose is to notice that the client has closed the connection. It is
// allowed once the current request's body has been read completely.
const (
	aheadNone uint32 = iota
	aheadAllowed
	aheadRunning
)

// startReadAhead starts the goroutine that runs readAhead, if reading ahead is allowed and not in
// progress. The sweeper calls it for requests that take longer than some milliseconds, so that fast
// ones do not pay for a goroutine.
func (c *ServerConn) startReadAhead() {
	if c.ahead.Load() != aheadAllowed {
		return
	}
	done := make(chan struct{})
	// stopReadAhead waits for the channel as soon as it sees aheadRunning, so it is set before.
	c.aheadDone = done
	// The CompareAndSwap fails if the request ended since the Load.
	if c.ahead.CompareAndSwap(aheadAllowed, aheadRunning) {
		go c.readAhead(done)
	}
}

// halfCloseTime decides whether a client that ends its sending half wants the response: it does if that
// end arrives within this time after the read that returns it has begun. Reading ahead starts up to 60 ms
// after the request.
const halfCloseTime = 50 * time.Millisecond

// readAhead reads bytes of the next request into the buffer while the handler runs, until the
// buffer is full, which makes fill return an error. If a read fails, readError cancels the context of the
// current request, so that the handler learns that the client has closed the connection; but see
// halfClosed, which needs aheadSince.
func (c *ServerConn) readAhead(done chan<- struct{}) {
	defer close(done)
	for c.ahead.Load() == aheadRunning {
		c.aheadSince = time.Now()
		_, err := c.fill(smallSize)
		// errInterrupted comes from stopReadAhead, and the condition of the loop then ends it.
		if err != nil && err != errInterrupted { //nolint:errorlint // set by this package
			return
		}
	}
}

// stopReadAhead ends readAhead's goroutine and waits until it has ended. After that, only the
// goroutine that serves the request reads.
func (c *ServerConn) stopReadAhead() {
	if c.ahead.Swap(aheadNone) == aheadRunning {
		c.interrupt()
		<-c.aheadDone
	}
}

// halfClosed reports whether err, which a read returned, means that the client has only shut down
// its sending side, and waits for the response. A client that leaves sends the same FIN or
// close_notify. Only the time tells them apart: a client with nothing more to send shuts down
// immediately.
func (c *ServerConn) halfClosed(err error) bool {
	if err != io.EOF { //nolint:errorlint // a connection returns it unwrapped
		return false
	}
	return c.ahead.Load() == aheadRunning && time.Since(c.aheadSince) < halfCloseTime
}
