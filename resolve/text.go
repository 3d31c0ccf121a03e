package resolve

import "fmt"

// String returns "replace", "add", "remove", "empty" or "does not exist".
func (k Kind) String() string {
	switch k {
	case Replace:
		return "replace"
	case Add:
		return "add"
	case Remove:
		return "remove"
	case Empty:
		return "empty"
	case DoesNotExist:
		return "does not exist"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// String returns "pending", "exists", "empty" or "does not exist".
func (s State) String() string {
	switch s {
	case StatePending:
		return "pending"
	case StateExists:
		return "exists"
	case StateEmpty:
		return "empty"
	case StateDoesNotExist:
		return "does not exist"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText returns what String does, so that a State is a word in JSON too.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns "unknown", "h2" or "opaque".
func (p Protocol) String() string {
	switch p {
	case Unknown:
		return "unknown"
	case H2:
		return "h2"
	case Opaque:
		return "opaque"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// MarshalText returns what String does, so that a Protocol is a word in JSON
// and YAML files.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText wrote, and "" as Unknown. Anything else
// is an error that names it.
func (p *Protocol) UnmarshalText(text []byte) error {
	switch string(text) {
	case "", "unknown":
		*p = Unknown
	case "h2":
		*p = H2
	case "opaque":
		*p = Opaque
	default:
		return fmt.Errorf("resolve: protocol %q is not unknown, h2 or opaque", text)
	}
	return nil
}
