package tcplayer

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// glance is what is to be seen of a connection before it is served.
type glance struct {
	most   int                    // bytes
	within time.Duration          // from now on
	enough func(seen []byte) bool // asked when something is there
}

// firstPeek is how much is looked at first where more may follow.
const firstPeek = 1 << 10

// look waits for what a client says first, and returns it with the connection
// to go on with, on which all of that is still to be read. Where it was told to
// see more than it did there is an error: io.EOF, that of the connection,
// os.ErrDeadlineExceeded, the cause of ctx. Seeing as much as it may is none.
//
// A TCP connection on Linux is left as it is, bytes and all: it needs no
// wrapper, and whoever holds it misses nothing.
func look(ctx context.Context, conn net.Conn, g glance) (seen []byte, next net.Conn, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(g.within))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	seen, next, err = lookNow(conn, g)
	if !stop() {
		return seen, next, context.Cause(ctx)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return seen, next, err
}

func lookNow(conn net.Conn, g glance) (seen []byte, next net.Conn, err error) {
	// What is read goes back as deep as it can, so that everybody has it who
	// holds one of the wrappers.
	var keeper *front
	bare := unmetered(conn)
	for f, ok := bare.(*front); ok; f, ok = bare.(*front) {
		keeper = f
		if f.again.Load() {
			break
		}
		bare = unmetered(f.Conn)
	}
	if ok, seen, err := peek(bare, g); ok {
		return seen, conn, err
	}
	if next = conn; keeper == nil {
		keeper = &front{Conn: conn}
		next = keeper
	}
	seen, err = keeper.gather(g)
	return seen[:min(len(seen), g.most)], next, err
}

// gather reads, and puts what it read back to be read again. It may see more, if
// somebody had read that before.
func (f *front) gather(g glance) (seen []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen = f.head
	defer func() { f.keep(seen) }()
	for !g.satisfied(seen) {
		buf := make([]byte, min(g.most, max(firstPeek, 2*len(seen))))
		n := copy(buf, seen)
		var more int
		for n < len(buf) {
			more, err = f.Conn.Read(buf[n:])
			n += more
			f.took = f.took || more > 0
			if err != nil || n > 0 && g.enough(buf[:n]) {
				break
			}
		}
		seen = buf[:n]
		// What comes with an error may be enough, as from a tls.Conn that finds the
		// end behind the last bytes. The error comes again, to whoever reads on.
		if err != nil && !g.satisfied(seen) {
			return seen, err
		}
	}
	return seen, nil
}

func (g glance) satisfied(seen []byte) bool {
	return len(seen) >= g.most || len(seen) > 0 && g.enough(seen)
}

// lateness reports whether err says that the client took too long.
func lateness(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
