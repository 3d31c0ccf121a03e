package settings_test

import (
	"fmt"

	"github.com/gotower/gotower/examples/proxy/settings"
)

func ExampleRead() {
	environ := map[string]string{"LINKERD2_PROXY_OUTBOUND_CONNECT_TIMEOUT": "1s"}
	lookup := func(name string) (string, bool) {
		v, ok := environ[name]
		return v, ok
	}
	s, err := settings.Read(lookup, settings.File("proxy.yaml", []byte(`
destination_svc_addr: localhost:8086
outbound:
  connect_timeout: 2s
  http: {queue_capacity: 100, failfast_timeout: 500ms}
`)))
	fmt.Println(err)
	fmt.Println(s.Outbound.Connect.Timeout, s.Outbound.HTTPQueue)

	_, err = settings.Read(lookup, settings.File("proxy.yaml", []byte("outbound: {conect_timeout: 2s}")))
	fmt.Println(err)
	// Output:
	// <nil>
	// 1s {100 500ms}
	// proxy.yaml:1:28: outbound.conect_timeout: is unknown: --help lists the settings
	// LINKERD2_PROXY_DESTINATION_SVC_ADDR: is not set: host:port of a destination controller
}
