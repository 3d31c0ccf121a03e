// Package share lets several streams share one source.
package share

import "sync"

// Group holds one source, a shared value of type S, for each key that is in use. The zero Group is
// ready to use.
type Group[K comparable, S any] struct {
	mu      sync.Mutex
	sources map[K]*source[S]
}

// source is the value that the users of one key share, such as a stream from a server.
type source[S any] struct {
	value S
	stop  func()
	users int // calls of Use whose leave was not called yet
}

// Use returns the source of key, and a function leave that the caller must call once when it no
// longer uses the source. If the source is not in use, Use calls start, which returns the source
// and the function that stops it. When the last user calls leave, the source is stopped.
func (g *Group[K, S]) Use(key K, start func() (S, func())) (value S, leave func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.sources[key]
	if s == nil {
		if g.sources == nil {
			g.sources = make(map[K]*source[S])
		}
		s = new(source[S])
		s.value, s.stop = start()
		g.sources[key] = s
	}
	s.users++
	return s.value, func() {
		g.mu.Lock()
		s.users--
		last := s.users == 0
		if last {
			delete(g.sources, key)
		}
		g.mu.Unlock()
		// Without mu, because stop may take long. The key may already have a new source.
		if last {
			s.stop()
		}
	}
}

// Len returns the number of sources that are in use.
func (g *Group[K, S]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sources)
}

// Latest holds a source's latest value and error, for any number of readers. Changing it never
// waits for them. The zero Latest holds neither.
type Latest[T any] struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if no reader waits
	value   T
	err     error    // nil once a value follows the last error
	now     Position // the numbers of values and errors so far
}

// Position counts the values and errors that one reader has seen.
type Position struct{ values, errors int }

// Set stores a value, and removes the error that Fail stored before.
func (l *Latest[T]) Set(value T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value = value
	l.err = nil
	l.now.values++
	l.wake()
}

// Fail stores an error. It does not change the value.
func (l *Latest[T]) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	l.now.errors++
	l.wake()
}

// wake wakes the readers that wait. The caller holds mu.
func (l *Latest[T]) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Changes holds a source's latest value, and its latest error if that is new to the reader.
type Changes[T any] struct {
	Value T
	Fresh bool            // whether Value is new
	Err   error           // nil if the reader has seen it, or if a later Set removed it
	Next  <-chan struct{} // closed at the next change
}

// Look returns the changes that a reader has not seen yet. pos is the reader's position, which Look
// updates.
func (l *Latest[T]) Look(pos *Position) Changes[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	c := Changes[T]{Value: l.value, Fresh: l.now.values > pos.values, Next: l.changed}
	// An error that the reader has seen is not returned again.
	if l.now.errors > pos.errors {
		c.Err = l.err
	}
	*pos = l.now
	return c
}
