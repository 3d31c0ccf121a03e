package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/proxy/outbound"
	"github.com/gotower/gotower/examples/proxy/sidecar"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/profiles/linkerd"
)

// config is what the environment says.
type config struct {
	sidecar.Config
	logJSON bool
}

// variables is the help text, in the order of config.
const variables = `  OUTBOUND_LISTEN_ADDR                    ip:port for HTTP/1.1 and h2c (127.0.0.1:4140)
  ADMIN_LISTEN_ADDR                       ip:port for /live /ready /metrics /stack /view/ (127.0.0.1:4191)
  CONTROL_LISTEN_ADDR                     ip:port for tap; loopback clients only (127.0.0.1:4190)
  DESTINATION_SVC_ADDR                    host:port of the destination controller, in clear; required
  DESTINATION_CONTEXT                     context token for the controller ("")
  DESTINATION_PROFILE_SUFFIXES            name,... of which profiles are asked for, all that is below them (.)
  DESTINATION_PROFILE_NETWORKS            network,... likewise, for targets that are addresses ("")
  SHUTDOWN_GRACE_PERIOD                   how long open requests may take to end (2m)
  LOG_FORMAT                              plain or json (plain)
  OUTBOUND_MAX_IN_FLIGHT                  requests at a time (100000)
  OUTBOUND_HTTP_QUEUE_CAPACITY            requests that may wait for a target (10000)
  OUTBOUND_HTTP_FAILFAST_TIMEOUT          how long they may wait (3s)
  OUTBOUND_DISCOVERY_IDLE_TIMEOUT         how long a target without requests is kept (5s)
  OUTBOUND_CONNECT_TIMEOUT                for one connection (1s)
  OUTBOUND_CONNECT_EXP_BACKOFF_MIN        between attempts to connect (100ms)
  OUTBOUND_CONNECT_EXP_BACKOFF_MAX        (60s)
  OUTBOUND_CONNECT_EXP_BACKOFF_JITTER     (0.1)
  OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT  how long an unused connection is kept (3s)
  OUTBOUND_DISABLE_INFORMATIONAL_HEADERS  true: no l5d-proxy-error in answers (false)
  TAP_LABELS                              key=value,... that tap shows for this proxy's clients ("")
`

// readConfig reads every variable, and returns all that is wrong as one error.
func readConfig(lookup func(string) (string, bool)) (config, error) {
	e := &env{lookup: lookup}
	c := config{
		logJSON: strings.EqualFold(e.text("LOG_FORMAT", "plain"), "json"),
		Config: sidecar.Config{
			Listen:      e.addr("OUTBOUND_LISTEN_ADDR", "127.0.0.1:4140"),
			Admin:       e.addr("ADMIN_LISTEN_ADDR", "127.0.0.1:4191"),
			Tap:         e.addr("CONTROL_LISTEN_ADDR", "127.0.0.1:4190"),
			Destination: e.require("DESTINATION_SVC_ADDR", "host:port of a destination controller"),
			Grace:       e.duration("SHUTDOWN_GRACE_PERIOD", 2*time.Minute),
			Outbound: outbound.Config{
				ContextToken: e.text("DESTINATION_CONTEXT", ""),
				Profiled: []linkerd.Option{
					linkerd.Names(read(e, "DESTINATION_PROFILE_SUFFIXES", []string{"."}, parseNames)...),
					linkerd.Networks(read(e, "DESTINATION_PROFILE_NETWORKS", nil, parseNetworks)...),
				},
				MaxInFlight:    e.number("OUTBOUND_MAX_IN_FLIGHT", 100_000),
				QueueCapacity:  e.number("OUTBOUND_HTTP_QUEUE_CAPACITY", 10_000),
				FailFast:       e.duration("OUTBOUND_HTTP_FAILFAST_TIMEOUT", 3*time.Second),
				DiscoveryIdle:  e.duration("OUTBOUND_DISCOVERY_IDLE_TIMEOUT", 5*time.Second),
				ConnectTimeout: e.duration("OUTBOUND_CONNECT_TIMEOUT", time.Second),
				PoolIdle:       e.duration("OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", 3*time.Second),
				Quiet:          e.flag("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS"),
				SourceLabels:   read(e, "TAP_LABELS", nil, parseLabels),
				Backoff: layer.Backoff{
					Min:    e.duration("OUTBOUND_CONNECT_EXP_BACKOFF_MIN", 100*time.Millisecond),
					Max:    e.duration("OUTBOUND_CONNECT_EXP_BACKOFF_MAX", time.Minute),
					Jitter: e.ratio("OUTBOUND_CONNECT_EXP_BACKOFF_JITTER", 0.1),
				},
			},
		},
	}
	if err := c.Outbound.Backoff.Validate(); err != nil {
		e.problems = append(e.problems, fmt.Errorf("%sOUTBOUND_CONNECT_EXP_BACKOFF_*: %w", envPrefix, err))
	}
	return c, errors.Join(e.problems...)
}

func usage(w io.Writer) {
	fmt.Fprintf(w, "A reverse proxy made of gotower's packages. It reads these variables, each with\n"+
		"the prefix %s (default in brackets):\n\n%s", envPrefix, variables)
}
