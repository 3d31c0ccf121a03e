package message

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// Exchange serves one request of a proxy. The connection closes the body of the returned
// response. A returned error aborts the request: HTTP/1.1 then closes the connection, and
// HTTP/2 resets the stream with the code of [ResetCode]. Before the call, the connection
// removes the hop-by-hop fields from the request, except those of an upgrade and TE:
// trailers.
type Exchange func(req *http.Request) (*http.Response, error)

// ServerConfig is the configuration of the connections of a server. Exactly one of Exchange
// and Handler is set. A limit of 0 means unlimited.
type ServerConfig struct {
	Exchange Exchange
	Handler  http.Handler
	Sweeper  *sweep.Sweeper
	Log      *slog.Logger // not nil
	Draining *atomic.Bool // set to true when the server begins to drain; may be nil

	MaxHeaderBytes int           // largest size of the headers of a request, in bytes
	HeaderTimeout  time.Duration // longest time from the first byte of the headers to their end
	IdleTimeout    time.Duration // longest time between two requests
	BodyIdle       time.Duration // longest pause while a request body arrives
	MinBodyRate    int           // lowest rate of a request body, in bytes per second
	WriteTimeout   time.Duration // longest time in which a write makes no progress

	// The fields below are used by HTTP/2 only.

	MaxStreams      int
	MaxStreamResets int
	StreamWindow    int
	ConnWindow      int
	MaxFrameSize    int
	PingInterval    time.Duration
	PingTimeout     time.Duration
	DrainTimeout    time.Duration // longest time between the two GOAWAYs of a drain; 0 means none
}
