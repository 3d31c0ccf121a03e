package top

import "slices"

// cursor is the selection in a list that changes. After a move it stays on the selected
// item.
type cursor struct {
	key   string // key of the selected item; "" means the item at the position at
	at    int
	first int // first item on the screen
}

// place updates the position of the selected item and the first item on the screen for
// new keys. height is the number of items on the screen.
func (c *cursor) place(keys []string, height int) {
	if c.key != "" {
		if i := slices.Index(keys, c.key); i >= 0 {
			c.at = i
		} else {
			c.key = ""
		}
	}
	c.at = max(0, min(c.at, len(keys)-1))
	c.first = max(min(c.first, c.at), c.at-max(height, 1)+1)
	c.first = max(0, min(c.first, len(keys)-height))
}

// move moves the selection by a number of items. If the first item is selected, the
// first position stays selected when the items change.
func (c *cursor) move(by int, keys []string) {
	if len(keys) == 0 {
		return
	}
	c.at = max(0, min(c.at+by, len(keys)-1))
	if c.key = keys[c.at]; c.at == 0 {
		c.key = ""
	}
}

// step returns by how many items a key moves a cursor. page is the number of items on the
// screen.
func step(key string, page int) (by int, ok bool) {
	const far = 1 << 30
	page = max(page, 1)
	switch key {
	case "up", "k":
		return -1, true
	case "down", "j":
		return 1, true
	case "pgup", "ctrl+b":
		return -page, true
	case "pgdown", "ctrl+f":
		return page, true
	case "home", "g":
		return -far, true
	case "end", "G":
		return far, true
	}
	return 0, false
}

// sideways returns by how many columns of the screen a key scrolls to the right.
func sideways(key string) (by int, ok bool) {
	const scroll = 5
	switch key {
	case "a", "left":
		return -scroll, true
	case "d", "right":
		return scroll, true
	}
	return 0, false
}
