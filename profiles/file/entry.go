package file

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/gotower/gotower/profiles"
)

// entry is one profile of a file. It is made ready for a target when somebody
// asks, since some of it depends on the target's port.
type entry struct {
	at *Error // where it is, for what is said of it later

	host      string // in small letters, without a dot at the end
	port      uint16 // 0 for all that no other entry has
	namespace string // of a ServiceProfile, may be empty
	linkerd   bool

	profile     profiles.Profile // without targets; opaque if all its ports are
	split       []profiles.Target
	opaquePorts map[uint16]bool
}

// defaultPort is that of a target without a port, as linkerd's controller has it.
const defaultPort = 80

// with returns the profile for a target with this port.
func (e *entry) with(port uint16) *profiles.Profile {
	p := e.profile
	p.OpaqueProtocol = p.OpaqueProtocol || e.opaquePorts[port]
	p.Routes = mirrored(p.Routes, port)
	for _, t := range e.split {
		t.Authority = withPort(t.Authority, port)
		p.Targets = append(p.Targets, t)
	}
	return &p
}

// because returns a mistake at the place of e. The nodes of the file are not
// kept for that: they are many times its size.
func (e *entry) because(format string, args ...any) *Error {
	at := *e.at
	at.Reason = fmt.Sprintf(format, args...)
	return &at
}

// key tells which entries cannot stand beside each other.
type key struct {
	host      string
	port      uint16
	namespace string
	linkerd   bool
}

func (e *entry) key() key { return key{e.host, e.port, e.namespace, e.linkerd} }

func (e *entry) String() string {
	if e.port == 0 {
		return e.host
	}
	return net.JoinHostPort(e.host, strconv.Itoa(int(e.port)))
}

// defaultTTL is how long a request counts for the retries.
const defaultTTL = 10 * time.Second

// defaultBudget is what linkerd's controller says where a profile does not.
func defaultBudget() *profiles.RetryBudget {
	return &profiles.RetryBudget{Ratio: 0.2, MinPerSecond: 10, TTL: defaultTTL}
}
