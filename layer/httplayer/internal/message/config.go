package message

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer/httplayer/internal/sweep"
)

// Exchange serves a request of a proxy. It returns a response, whose body the connection
// closes, or an error, which aborts the request. HTTP/1.1 then closes the connection, and
// HTTP/2 resets the stream with the code of [ResetCode]. Hop-by-hop fields are removed from
// the request, except those of an upgrade and TE: trailers.
type Exchange func(req *http.Request) (*http.Response, error)

// ServerConfig is the configuration of the connections of a server. One of
// Exchange and Handler is set. A limit of 0 is none.
type ServerConfig struct {
	Exchange Exchange
	Handler  http.Handler
	Sweeper  *sweep.Sweeper
	Log      *slog.Logger // not nil
	Draining *atomic.Bool // the server is draining; may be nil

	MaxHeaderBytes int           // of a request
	HeaderTimeout  time.Duration // from the first byte to the end of the headers
	IdleTimeout    time.Duration // between requests
	BodyIdle       time.Duration // pause of a request body
	MinBodyRate    int           // bytes per second of a request body, after BodyIdle
	WriteTimeout   time.Duration // without progress of a write

	// HTTP/2
	MaxStreams      int
	MaxStreamResets int
	StreamWindow    int
	ConnWindow      int
	MaxFrameSize    int
	PingInterval    time.Duration
	PingTimeout     time.Duration
	DrainTimeout    time.Duration // between the two GOAWAYs at most
}
