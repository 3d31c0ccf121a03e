package h1

// States of reading ahead: it is allowed while a handler runs and the request
// body has ended.
const (
	aheadNone uint32 = iota
	aheadAllowed
	aheadRunning
)

// startReadAhead is called by the sweeper.
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

// readAhead reads the next request while the handler runs, up to a full buffer,
// to notice that the client leaves.
func (c *ServerConn) readAhead(done chan<- struct{}) {
	defer close(done)
	for c.ahead.Load() == aheadRunning {
		if _, err := c.fill(smallSize); err != nil && err != errInterrupted { //nolint:errorlint // set by this package
			return
		}
	}
}

// stopReadAhead makes the serving goroutine the only one that reads.
func (c *ServerConn) stopReadAhead() {
	if c.ahead.Swap(aheadNone) == aheadRunning {
		c.interrupt()
		<-c.aheadDone
	}
}
