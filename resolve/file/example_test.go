package file_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/file"
)

const targets = `
destinations:
  web:80:
    labels: {service: web}
    endpoints:
      - {addr: 10.0.0.1:80, labels: {zone: a}}
      - {addr: 10.0.0.2:80, protocol: h2, weight: 20000}
  idle:80: {}
`

func ExampleNew() {
	dir, err := os.MkdirTemp("", "targets")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "targets.yaml")
	if err := os.WriteFile(path, []byte(targets), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	r := file.New(path)
	var known resolve.Set
	for update, err := range r.Resolve(context.Background(), "web:80") {
		if err != nil {
			fmt.Println(err) // the known endpoints stay
			continue
		}
		known.Apply(update)
		for _, e := range known.Endpoints() {
			fmt.Println(e.Addr, e.Protocol, e.Labels)
		}
		break // it would wait for a change of the file
	}
	// Output:
	// 10.0.0.1:80 unknown map[service:web zone:a]
	// 10.0.0.2:80 h2 map[service:web]
}

func ExampleParse() {
	_, err := file.Parse("targets.yaml", []byte(`
destinations:
  web:80:
    endpoints:
      - {addr: localhost:80}
      - {addr: 10.0.0.2:80, wieght: 20000, opaque_port: 70000}
`))
	fmt.Println(err)
	// Output:
	// targets.yaml:5:16: destinations.web:80.endpoints[0].addr "localhost:80": not an IP address with a port: write 10.0.0.1:80 or [fd00::1]:80
	// targets.yaml:6:29: destinations.web:80.endpoints[1].wieght: unknown field: there are addr, authority, identity, labels, locality, locality_weight, opaque_port, ping_interval, ping_timeout, ping_while_idle, priority, protocol, server_name, weight
	// targets.yaml:6:57: destinations.web:80.endpoints[1].opaque_port "70000": not a port: write 1 to 65535
}
