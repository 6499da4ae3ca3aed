# A node: containerd and a kubelet in namespaces of their own. The end of the namespace's first process is the end of
# every process, mount and link of the node; only the cgroups are left, as empty directories.
set -eu
case $1 in
outside)
  printf '%s\n' "$CGROUPS" | while IFS= read -r group; do
    echo $$ >"$group/cgroup.procs"
  done
  exec unshare --net -- /bin/sh "$0" link
  ;;
link)
  ip link set lo up
  ip link add eth0 type veth peer name "$LINK" netns "$NETWORK_PID"
  nsenter --target "$NETWORK_PID" --net ip link set "$LINK" master bridge up
  ip address add "$ADDRESS/24" dev eth0
  ip link set eth0 up
  ip route add "$SERVICES" via "$GATEWAY"
  ip route add "$PODS" via "$ROUTER"
  exec unshare --mount --uts --cgroup --pid --fork --kill-child --propagation private -- /bin/sh "$0" inside
  ;;
inside)
  mount -t proc proc /proc
  echo 1 >/proc/sys/net/ipv4/ip_forward
  echo "$NODE" >/proc/sys/kernel/hostname

  # The links of this namespace, and the cgroups below this node's own.
  mount -t sysfs sysfs /sys
  mount -t tmpfs tmpfs /sys/fs/cgroup
  printf '%s\n' "$HIERARCHIES" | while read -r folder options; do
    mkdir "/sys/fs/cgroup/$folder"
    mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$folder"
    # Several controllers in one hierarchy are known by each one's name too.
    IFS=,
    for controller in $folder; do
      [ -e "/sys/fs/cgroup/$controller" ] || ln -s "$folder" "/sys/fs/cgroup/$controller"
    done
    unset IFS
  done

  mount -t tmpfs tmpfs /run
  mkdir /run/lock /run/sysctl
  # The kubelet writes these, which belong to the whole machine.
  for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops; do
    copy=/run/sysctl/${name##*/}
    cat "/proc/sys/$name" >"$copy"
    mount --bind "$copy" "/proc/sys/$name"
  done
  mount --bind "$FILES/var" /var
  mount --bind "$FILES/etc" /etc
  mount --make-rshared /

  # Its output is its log, which the volume of a test's files has room for.
  containerd --config /etc/containerd/config.toml >>"$FILES/containerd.log" 2>&1 &
  until ctr version >/dev/null 2>&1; do
    sleep 0.05
  done
  ctr --namespace k8s.io images import "$IMAGES"
  : >"$FILES/imported"
  # As a service manager does: it is started when it has been configured, and started again when it ends.
  while :; do
    if [ -s /var/lib/kubelet/config.yaml ] && [ -s /var/lib/kubelet/kubeadm-flags.env ]; then
      . /var/lib/kubelet/kubeadm-flags.env
      # Both are lists of words without quotes.
      # shellcheck disable=SC2086
      kubelet $KUBELET_ARGUMENTS $KUBELET_KUBEADM_ARGS >>"$FILES/kubelet.log" 2>&1 || true
      echo "the kubelet has ended" >>"$FILES/kubelet.log"
    fi
    sleep 0.2
  done
  ;;
esac
