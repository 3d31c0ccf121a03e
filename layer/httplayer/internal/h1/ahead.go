package h1

import (
	"os"
	"time"
)

// States of reading ahead, which means reading bytes of the next request while a handler
// runs. It is allowed when the body of the current request has ended.
const (
	aheadNone uint32 = iota
	aheadAllowed
	aheadRunning
)

// startReadAhead starts the goroutine that runs readAhead, if reading ahead is allowed and
// is not in progress. The sweeper, which checks the time limits, calls it.
func (c *ServerConn) startReadAhead() {
	if c.ahead.Load() != aheadAllowed {
		return
	}
	done := make(chan struct{})
	c.aheadDone = done
	if c.ahead.CompareAndSwap(aheadAllowed, aheadRunning) {
		go c.readAhead(done)
	}
}

// readAhead reads bytes of the next request into the buffer while the handler runs, until
// the buffer is full. A failed read cancels the context of the current request, so that the
// handler learns that the client has closed the connection.
func (c *ServerConn) readAhead(done chan<- struct{}) {
	defer close(done)
	for c.ahead.Load() == aheadRunning {
		_, err := c.fill(smallSize)
		if err == os.ErrDeadlineExceeded { //nolint:errorlint // set by this package
			err = c.setReadDeadline(time.Time{}) // a deadline of the request body, which has ended
		}
		if err != nil && err != errInterrupted { //nolint:errorlint // set by this package
			return
		}
	}
}

// stopReadAhead ends the goroutine of readAhead and waits until it has ended. After that,
// only the goroutine that serves the request reads.
func (c *ServerConn) stopReadAhead() {
	if c.ahead.Swap(aheadNone) == aheadRunning {
		c.interrupt()
		<-c.aheadDone
	}
}
