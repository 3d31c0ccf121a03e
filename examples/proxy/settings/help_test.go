package settings_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/proxy/settings"
)

var update = flag.Bool("update", false, "write testdata/help.txt")

func TestHelp(t *testing.T) {
	var b strings.Builder
	require.NoError(t, settings.Help(&b))
	golden := filepath.Join("testdata", "help.txt")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "go test -update writes it anew")
}

// TestEveryVariableIsInTheHelp holds that what is asked for is what is told.
func TestEveryVariableIsInTheHelp(t *testing.T) {
	var b strings.Builder
	require.NoError(t, settings.Help(&b))
	asked := map[string]bool{}
	_, _ = settings.Read(func(name string) (string, bool) {
		asked[strings.TrimPrefix(name, settings.Prefix)] = true
		return "", false
	})
	for name := range asked {
		require.Regexp(t, `[ \[]`+name+`[ ,\]]`, b.String())
	}
}

// TestEveryVariableOfLinkerdIsKnown has the names of the specification.
func TestEveryVariableOfLinkerdIsKnown(t *testing.T) {
	asked := map[string]bool{}
	_, _ = settings.Read(func(name string) (string, bool) {
		asked[name] = true
		return "", false
	})
	names := strings.Fields(`
		OUTBOUND_LISTEN_ADDR OUTBOUND_LISTEN_ADDRS INBOUND_LISTEN_ADDR CONTROL_LISTEN_ADDR ADMIN_LISTEN_ADDR
		DESTINATION_SVC_ADDR DESTINATION_SVC_NAME POLICY_SVC_ADDR POLICY_SVC_NAME POLICY_WORKLOAD POLICY_CLUSTER_NETWORKS
		IDENTITY_SVC_ADDR IDENTITY_SVC_NAME IDENTITY_DIR IDENTITY_TRUST_ANCHORS IDENTITY_TOKEN_FILE IDENTITY_LOCAL_NAME
		IDENTITY_SERVER_ID IDENTITY_SERVER_NAME IDENTITY_SPIRE_SOCKET IDENTITY_MIN_REFRESH IDENTITY_MAX_REFRESH IDENTITY_DISABLED
		TAP_SVC_NAME TAP_DISABLED DESTINATION_CONTEXT OUTBOUND_TCP_QUEUE_CAPACITY OUTBOUND_TCP_FAILFAST_TIMEOUT
		MAX_IDLE_CONNS_PER_ENDPOINT OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT DESTINATION_PROFILE_SUFFIXES DESTINATION_PROFILE_NETWORKS
		DESTINATION_PROFILE_INITIAL_TIMEOUT DESTINATION_GET_SUFFIXES DESTINATION_BUFFER_CAPACITY INBOUND_DEFAULT_POLICY INBOUND_PORTS
		INBOUND_PORTS_REQUIRE_IDENTITY INBOUND_PORTS_REQUIRE_TLS INBOUND_IPS INBOUND_GATEWAY_SUFFIXES INGRESS_MODE
		SHUTDOWN_GRACE_PERIOD SHUTDOWN_ENDPOINT_ENABLED HTTP2_INITIAL_STREAM_WINDOW_SIZE HTTP2_INITIAL_CONNECTION_WINDOW_SIZE
		CONTROL_STREAM_INITIAL_TIMEOUT CONTROL_STREAM_IDLE_TIMEOUT CONTROL_STREAM_LIFETIME DNS_MIN_TTL DNS_MAX_TTL DNS_CANONICALIZE_TIMEOUT
		CONTROL_CONNECT_TIMEOUT CONTROL_DISPATCH_TIMEOUT
		OUTBOUND_DISABLE_INFORMATIONAL_HEADERS OUTBOUND_METRICS_HOSTNAME_LABELS INBOUND_METRICS_AUTHORITY_LABELS METRICS_RETAIN_IDLE
		LOG LOG_FORMAT ACCESS_LOG CORES CORES_MIN CORES_MAX CORES_MAX_RATIO TRACE_COLLECTOR_SVC_ADDR TRACE_COLLECTOR_SVC_NAME
		TRACE_ATTRIBUTES_PATH TRACE_SERVICE_NAME TRACE_EXTRA_ATTRIBUTES`)
	for _, side := range []string{"OUTBOUND_", "INBOUND_"} {
		for name := range strings.FieldsSeq(`HTTP_QUEUE_CAPACITY HTTP_FAILFAST_TIMEOUT DISPATCH_TIMEOUT DETECT_TIMEOUT CONNECT_TIMEOUT
			CONNECT_EXP_BACKOFF_MIN CONNECT_EXP_BACKOFF_MAX CONNECT_EXP_BACKOFF_JITTER ACCEPT_KEEPALIVE CONNECT_KEEPALIVE
			ACCEPT_USER_TIMEOUT CONNECT_USER_TIMEOUT TCP_LISTEN_BACKLOG HTTP1_CONNECTION_POOL_IDLE_TIMEOUT MAX_IN_FLIGHT
			DISCOVERY_IDLE_TIMEOUT ROUTER_MAX_IDLE_AGE ROUTER_CAPACITY PORTS_DISABLE_PROTOCOL_DETECTION`) {
			names = append(names, side+name)
		}
		for name := range strings.FieldsSeq(`MAX_CONCURRENT_STREAMS MAX_FRAME_SIZE MAX_HEADER_LIST_SIZE MAX_PENDING_ACCEPT_RESET_STREAMS
			MAX_SEND_BUF_SIZE ADAPTIVE_FLOW_CONTROL KEEP_ALIVE_INTERVAL KEEP_ALIVE_TIMEOUT INITIAL_STREAM_WINDOW_SIZE
			INITIAL_CONNECTION_WINDOW_SIZE`) {
			names = append(names, side+"SERVER_HTTP2_"+name)
		}
	}
	for _, name := range names {
		require.True(t, asked[settings.Prefix+name], name)
	}
	require.True(t, asked["OTEL_RESOURCE_ATTRIBUTES"])
}
