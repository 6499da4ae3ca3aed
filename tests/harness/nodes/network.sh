# The network between the nodes: a bridge in a network namespace of its own, and a link from it to the namespace of the
# control plane. The end of this process ends the namespace, and with it both.
set -eu
case $1 in
outside)
  # Without --fork: the process keeps its id, by which others enter the namespace.
  exec unshare --net -- /bin/sh "$0" inside
  ;;
inside)
  ip link add bridge type bridge
  ip address add "$ROUTER/24" dev bridge
  ip link set bridge up
  # Between the nodes' pods. The setting is this namespace's own.
  echo 1 >/proc/sys/net/ipv4/ip_forward
  echo 0 >/proc/sys/net/ipv4/conf/all/send_redirects
  echo 0 >/proc/sys/net/ipv4/conf/bridge/send_redirects
  ip link add uplink type veth peer name "$LINK" netns "$HOME_PID"
  ip link set uplink master bridge up
  nsenter --target "$HOME_PID" --net /bin/sh "$0" uplink
  : >"$READY"
  exec sleep infinity
  ;;
uplink)
  ip address add "$GATEWAY/24" dev "$LINK"
  ip address add "$SERVICE/32" dev "$LINK"
  ip link set "$LINK" up
  ip route add "$PODS" via "$ROUTER" dev "$LINK"
  ;;
esac
