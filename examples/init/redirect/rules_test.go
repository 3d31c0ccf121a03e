package redirect

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func lines(rules []Rule) (all []string) {
	for _, r := range rules {
		all = append(all, strings.Join(r, " "))
	}
	return all
}

func worked() Config {
	return Config{
		IncomingPort: 4143, OutgoingPort: 4140, UID: 2102, GID: -1,
		InboundIgnore: []string{"4190", "4191", "4567", "4568"}, OutboundIgnore: []string{"4567", "4568"},
	}
}

// The example that linkerd's own deployment gives.
func TestRulesExample(t *testing.T) {
	assert.Equal(t, []string{
		"-N PROXY_INIT_REDIRECT",
		"-A PROXY_INIT_REDIRECT -p tcp --match multiport --dports 4190,4191,4567,4568 -j RETURN -m comment --comment proxy-init/ignore-port-4190,4191,4567,4568",
		"-A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-port 4143 -m comment --comment proxy-init/redirect-all-incoming-to-proxy-port",
		"-A PREROUTING -j PROXY_INIT_REDIRECT -m comment --comment proxy-init/install-proxy-init-prerouting",
		"-N PROXY_INIT_OUTPUT",
		"-A PROXY_INIT_OUTPUT -m owner --uid-owner 2102 -j RETURN -m comment --comment proxy-init/ignore-proxy-user-id",
		"-A PROXY_INIT_OUTPUT -o lo -j RETURN -m comment --comment proxy-init/ignore-loopback",
		"-A PROXY_INIT_OUTPUT -p tcp --match multiport --dports 4567,4568 -j RETURN -m comment --comment proxy-init/ignore-port-4567,4568",
		"-A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-port 4140 -m comment --comment proxy-init/redirect-all-outgoing-to-proxy-port",
		"-A OUTPUT -j PROXY_INIT_OUTPUT -m comment --comment proxy-init/install-proxy-init-output",
	}, lines(Rules(worked(), IPv4, Existing{})))
}

func TestRulesAllFields(t *testing.T) {
	c := Config{
		IncomingPort: 1, OutgoingPort: 2, UID: 3, GID: 4, PortsToRedirect: []int{80, 8080},
		InboundIgnore: []string{"5-6", "7-7", " 8 "}, OutboundIgnore: []string{"x"}, SubnetsToIgnore: []string{"10.0.0.0/8", "fd00::/8"}, Wait: true,
	}
	v4 := []string{
		"-F PROXY_INIT_REDIRECT -w",
		"-A PROXY_INIT_REDIRECT -p tcp --match multiport --dports 5:6,7,8 -j RETURN -m comment --comment proxy-init/ignore-port-5:6,7,8 -w",
		"-A PROXY_INIT_REDIRECT -p all -j RETURN -s 10.0.0.0/8 -m comment --comment proxy-init/ignore-subnet-10.0.0.0/8 -w",
		"-A PROXY_INIT_REDIRECT -p tcp --destination-port 80 -j REDIRECT --to-port 1 -m comment --comment proxy-init/redirect-port-80-to-proxy-port -w",
		"-A PROXY_INIT_REDIRECT -p tcp --destination-port 8080 -j REDIRECT --to-port 1 -m comment --comment proxy-init/redirect-port-8080-to-proxy-port -w",
		"-F PROXY_INIT_OUTPUT -w",
		"-A PROXY_INIT_OUTPUT -m owner --uid-owner 3 -j RETURN -m comment --comment proxy-init/ignore-proxy-user-id -w",
		"-A PROXY_INIT_OUTPUT -m owner --gid-owner 4 -j RETURN -m comment --comment proxy-init/ignore-proxy-group-id -w",
		"-A PROXY_INIT_OUTPUT -o lo -j RETURN -m comment --comment proxy-init/ignore-loopback -w",
		"-A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-port 2 -m comment --comment proxy-init/redirect-all-outgoing-to-proxy-port -w",
	}
	all := Existing{true, true, true, true}
	assert.Equal(t, v4, lines(Rules(c, IPv4, all)))
	v6 := strings.ReplaceAll(strings.Join(v4, "\n"), "10.0.0.0/8", "fd00::/8")
	assert.Equal(t, v6, strings.Join(lines(Rules(c, IPv6, all)), "\n"))
}

func TestCleanup(t *testing.T) {
	assert.Empty(t, Cleanup(Existing{}))
	var verbs []string
	for _, r := range Cleanup(Existing{true, true, true, true}) {
		verbs = append(verbs, r[0]+" "+r[1])
	}
	assert.Equal(t, []string{
		"-D PREROUTING", "-D OUTPUT", "-F PROXY_INIT_OUTPUT", "-F PROXY_INIT_REDIRECT", "-X PROXY_INIT_OUTPUT", "-X PROXY_INIT_REDIRECT",
	}, verbs)
}

func TestParse(t *testing.T) {
	assert.Zero(t, Parse(""))
	assert.Zero(t, Parse("*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -j OTHER\nCOMMIT\n"))
	assert.Equal(t, Existing{true, true, true, true}, Parse(`*nat
:PROXY_INIT_OUTPUT - [0:0]
:PROXY_INIT_REDIRECT - [0:0]
-A PREROUTING -m comment --comment "proxy-init/install-proxy-init-prerouting" -j PROXY_INIT_REDIRECT
-A OUTPUT -j PROXY_INIT_OUTPUT
`))
	assert.Equal(t, Existing{Redirect: true}, Parse(":PROXY_INIT_REDIRECT - [0:0]\n-A PROXY_INIT_REDIRECT -j PROXY_INIT_REDIRECT_2\n:PROXY_INIT_OUTPUT2 -\n"))
}

func FuzzParse(f *testing.F) {
	f.Add(":PROXY_INIT_OUTPUT - [0:0]\n-A OUTPUT -j PROXY_INIT_OUTPUT")
	f.Fuzz(func(t *testing.T, dump string) {
		e := Parse(dump)
		if Parse(dump+"\n"+dump) != e {
			t.Error("what is there twice is there")
		}
	})
}

// However ports are listed, no match has more than fifteen, and none is lost.
func TestPortChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfN(rapid.StringMatching(`[0-9]{1,5}(-[0-9]{1,5})?|x|-|`), 0, 60).Draw(t, "entries")
		ports, bad := Ports(entries)
		assert.Equal(t, len(entries), len(ports)+len(bad))
		var back []string
		for _, list := range chunks(ports) {
			parts := strings.Split(list, ",")
			assert.LessOrEqual(t, len(parts)+strings.Count(list, ":"), 15)
			back = append(back, parts...)
		}
		assert.Equal(t, ports, back)
	})
}

func TestPorts(t *testing.T) {
	ports, bad := Ports([]string{"1", "2-3", "4-4", " 5", "65535", "65536", "-1", "9-8", "", "1-", "a", "0x1", "+1"})
	assert.Equal(t, []string{"1", "2:3", "4", "5", "65535"}, ports)
	assert.Len(t, bad, 8)
	assert.ErrorContains(t, bad[0], `"65536" must be a port or`)
}

func TestValidate(t *testing.T) {
	c := worked()
	assert.NoError(t, c.Validate())
	assert.False(t, c.Loops())
	c.UID = 0
	assert.ErrorIs(t, c.Validate(), ErrRoot)
	assert.ErrorContains(t, c.Validate(), "--proxy-uid 0: ")
	c.UID, c.GID = -1, 0
	assert.ErrorIs(t, c.Validate(), ErrRoot)
	c.GID = -1
	assert.NoError(t, c.Validate())
	assert.True(t, c.Loops())
	err := Config{
		IncomingPort: -1, OutgoingPort: 65536, UID: 0, GID: -1, PortsToRedirect: []int{70000}, SubnetsToIgnore: []string{"10.0.0.0"},
	}.Validate()
	for _, want := range []string{"--incoming-proxy-port: required", "--outgoing-proxy-port: 65536", "--proxy-uid", "70000", `"10.0.0.0" must be a CIDR`} {
		assert.ErrorContains(t, err, want)
	}
}

func TestParseMode(t *testing.T) {
	for _, tt := range []struct {
		name, binary string
		want         Mode
		err          string
	}{
		{"", "", Legacy, ""}, {"nft", "", NFT, ""}, {"plain", "iptables-legacy", Plain, ""}, {"legacy", "nonsense", Legacy, ""},
		{"", "iptables-nft", NFT, ""}, {"", "iptables", Plain, ""}, {"", "iptables-legacy", Legacy, ""},
		{"x", "", "", "--iptables-mode"}, {"", "/sbin/iptables", "", "--firewall-bin-path"},
	} {
		got, err := ParseMode(tt.name, tt.binary)
		assert.Equal(t, tt.want, got)
		if tt.err != "" {
			assert.ErrorContains(t, err, tt.err)
		} else {
			assert.NoError(t, err)
		}
	}
}
