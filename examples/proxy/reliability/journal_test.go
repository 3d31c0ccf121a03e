package reliability

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
)

// journal collects a proxy's log.
type journal struct {
	mu    sync.Mutex
	part  []byte
	lines []string // the most recent ones
	addrs map[string]string
	count map[string]int // lines by message
}

func newJournal() *journal {
	return &journal{addrs: make(map[string]string), count: make(map[string]int)}
}

// mostLines limits how many lines are kept.
const mostLines = 30

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.part = append(j.part, p...)
	for {
		line, rest, whole := bytes.Cut(j.part, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		j.hear(line)
		j.part = bytes.Clone(rest)
	}
}

func (j *journal) hear(line []byte) {
	j.lines = append(j.lines, string(line))
	j.lines = j.lines[max(0, len(j.lines)-mostLines):]
	var r struct {
		Fields struct{ Message, For, Addr string }
	}
	if json.Unmarshal(line, &r) != nil {
		return
	}
	j.count[r.Fields.Message]++
	if r.Fields.Message == "listening" {
		j.addrs[r.Fields.For] = r.Fields.Addr
	}
}

// addr returns the address that the proxy has logged for a listener, or "".
func (j *journal) addr(name string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.addrs[name]
}

// times returns how often the proxy has logged message.
func (j *journal) times(message string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.count[message]
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}
