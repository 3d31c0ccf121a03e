package meters

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// stackFamilies are the services of endpoints of HTTP, and of balancers, that were
// made, and let go. linkerd's proxy also counts how often they were polled, and waited for,
// which has no like here: a Call admits or refuses, and nobody polls before it.
type stackFamilies struct{ created, dropped *family[prometheus.Counter] }

func (m *Meters) stackFamilies() stackFamilies {
	return stackFamilies{
		created: m.counters("stack_create_total", "Total number of services created"),
		dropped: m.counters("stack_drop_total", "Total number of services dropped"),
	}
}

// stack counts a service that lives as long as ctx. The name is endpoint or
// balance.
func (m *Meters) stack(ctx context.Context, d Direction, protocol, name string) {
	labels := Labels{"direction": string(d), "protocol": protocol, "name": name}
	m.stacks.created.bind(m.always, labels).Inc()
	context.AfterFunc(ctx, m.stacks.dropped.bind(m.always, labels).Inc)
}
