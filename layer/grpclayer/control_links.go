package grpclayer

import "sync"

// controlLinks are the connections that there are, so that Close can tell when
// there are none any more.
type controlLinks struct {
	mu     sync.Mutex
	closed bool
	open   map[*controlLink]struct{}
	tasks  sync.WaitGroup // those who wait for the end of one
}

// add returns false if there is to be no new connection.
func (s *controlLinks) add(l *controlLink) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.open == nil {
		s.open = make(map[*controlLink]struct{})
	}
	s.open[l] = struct{}{}
	return true
}

// watch runs wait in a goroutine, unless the connections are closed already.
func (s *controlLinks) watch(wait func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Go(wait)
	}
}

// remove closes one.
func (s *controlLinks) remove(l *controlLink) {
	_ = l.cc.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, l)
}

// close closes all of them for good.
func (s *controlLinks) close() {
	s.mu.Lock()
	s.closed = true
	for l := range s.open {
		_ = l.cc.Close()
	}
	s.open = nil
	s.mu.Unlock()
	s.tasks.Wait()
}
